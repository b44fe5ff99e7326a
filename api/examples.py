"""Example requests at /docs. `MODEL` stands for the name of the model that is served when the page is read."""

from fastapi.openapi.models import Example

MODEL = "MODEL"

JOB_EXAMPLES: dict[str, Example] = {
    "prompt": {
        "summary": "A text to continue",
        "value": {"model": MODEL, "prompt": "The best thing about rivers is", "max_tokens": 32},
    },
    "messages": {
        "summary": "A conversation, for models with a chat template",
        "value": {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Name three rivers in Europe."}],
            "max_tokens": 64,
        },
    },
    "night": {
        "summary": "Work that may take the night, with limits, metadata and a repeatable outcome",
        "value": {
            "model": MODEL,
            "prompt": "Summary of chapter one:",
            "tier": "low",
            "max_tokens": 128,
            "temperature": 0.7,
            "seed": 7,
            "stop": ["\n\n"],
            "run_for": 600,
            "stream": False,
            "metadata": {"book": "42", "chapter": "1"},
        },
    },
    "choices": {
        "summary": "Three outputs of one prompt, each different",
        "value": {"model": MODEL, "prompt": "The best thing about rivers is", "max_tokens": 32, "n": 3},
    },
    "beams": {
        "summary": "The two best outputs that a beam search finds",
        "value": {
            "model": MODEL,
            "prompt": "The best thing about rivers is",
            "max_tokens": 32,
            "n": 2,
            "num_beams": 4,
            "length_penalty": 0.8,
        },
    },
    "embedding": {
        "summary": "The vector of a text",
        "value": {"model": MODEL, "kind": "embedding", "prompt": "The best thing about rivers is"},
    },
    "webhook": {
        "summary": "Told by a webhook when it ends",
        "value": {
            "model": MODEL,
            "prompt": "The best thing about rivers is",
            "max_tokens": 32,
            "webhook_url": "https://example.com/hooks/headrace",
        },
    },
}

EMBEDDING_EXAMPLES: dict[str, Example] = {
    "one": {
        "summary": "The vector of one text",
        "value": {"model": MODEL, "input": "The best thing about rivers is"},
    },
    "several": {
        "summary": "Those of several, a text or token ids each",
        "value": {"model": MODEL, "input": ["A river.", "A lake."], "encoding_format": "base64"},
    },
}

RESPONSE_EXAMPLES: dict[str, Example] = {
    "whole": {
        "summary": "An answer, when it is there",
        "value": {"model": MODEL, "input": "Why do rivers meander?", "max_output_tokens": 64},
    },
    "background": {
        "summary": "In the background, within two hours",
        "value": {
            "model": MODEL,
            "input": [{"role": "user", "content": "Write a long story about a mill."}],
            "background": True,
            "background_options": {"completion_window": "2h"},
        },
    },
    "json": {
        "summary": "As JSON that a schema allows, streamed",
        "value": {
            "model": MODEL,
            "input": "Name a river and its length in km.",
            "stream": True,
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "river",
                    "schema": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "km": {"type": "integer"}},
                        "required": ["name", "km"],
                    },
                }
            },
        },
    },
}

COMPLETION_EXAMPLES: dict[str, Example] = {
    "whole": {
        "summary": "The whole text at once",
        "value": {"model": MODEL, "prompt": "The best thing about rivers is", "max_tokens": 32, "temperature": 0},
    },
    "stream": {
        "summary": "Streamed, with usage at the end",
        "value": {
            "model": MODEL,
            "prompt": "The best thing about rivers is",
            "max_tokens": 32,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    },
    "tokens": {
        "summary": "From token ids, exactly 8 tokens",
        "value": {"model": MODEL, "prompt": [101, 102, 103], "max_tokens": 8, "ignore_eos": True},
    },
}

CHAT_EXAMPLES: dict[str, Example] = {
    "whole": {
        "summary": "The whole message at once",
        "value": {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Name three rivers in Europe."}],
            "max_completion_tokens": 64,
        },
    },
    "json": {
        "summary": "An answer that a JSON Schema allows",
        "value": {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Name a river and the country of its mouth."}],
            "max_completion_tokens": 128,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "river",
                    "schema": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "country": {"type": "string"}},
                        "required": ["name", "country"],
                        "additionalProperties": False,
                    },
                },
            },
        },
    },
    "tools": {
        "summary": "With a function to call, for models whose chat template has tools",
        "value": {
            "model": MODEL,
            "messages": [{"role": "user", "content": "How high is the water at Ulm?"}],
            "max_completion_tokens": 128,
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "water_level",
                        "description": "The water level at a gauge, in centimetres.",
                        "parameters": {
                            "type": "object",
                            "properties": {"gauge": {"type": "string"}},
                            "required": ["gauge"],
                        },
                    },
                }
            ],
        },
    },
    "stream": {
        "summary": "Streamed, with usage at the end",
        "value": {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Name three rivers in Europe."}],
            "max_completion_tokens": 64,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    },
}

BATCH_EXAMPLES: dict[str, Example] = {
    "day": {
        "summary": "Within a day",
        "value": {
            "input_file_id": "file-0193e4c2a1b47c3d8e5f60718293a4b5",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {"book": "42"},
        },
    },
}
