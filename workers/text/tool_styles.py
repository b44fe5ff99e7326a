"""How a model spells function calls, told by its chat template, as it was trained on both."""

from typing import Literal

ToolStyle = Literal["hermes", "llama3", "mistral", "mistral_named"]
KNOWN = "Hermes' and Qwen's <tool_call>, Llama 3's JSON, Mistral's [TOOL_CALLS]"

BEGIN, END = "<tool_call>", "</tool_call>"
CALLS, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKERS = (BEGIN, END, CALLS, ARGUMENTS, CALL_ID)  # some vocabularies have them as special tokens

# Of models that put no JSON into <tool_call>.
OTHER_CALLS = ("<function=", "<arg_key>")


def tool_style(chat_template: str) -> ToolStyle | None:
    """The spelling that this template teaches; None where it teaches none that is known here."""
    if CALLS in chat_template:
        return "mistral_named" if ARGUMENTS in chat_template else "mistral"
    if BEGIN in chat_template and not any(other in chat_template for other in OTHER_CALLS):
        return "hermes"
    if '"parameters": dictionary of argument name' in chat_template or "<|python_tag|>" in chat_template:
        return "llama3"
    return None
