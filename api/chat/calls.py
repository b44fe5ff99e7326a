"""A call of a function as it comes out of jobs and chats, spelled as OpenAI's chat does."""

from typing import Literal

from pydantic import BaseModel, Field


class ChatFunction(BaseModel):
    """A call of a function."""

    name: str = Field(description="The function's name.", examples=["get_weather"])
    arguments: str = Field(description="Its arguments as JSON, as the model wrote them.", examples=['{"city": "Ulm"}'])


class ChatToolCall(BaseModel):
    """A call of a tool."""

    id: str = Field(description="To be sent back as `tool_call_id`.", examples=["call_0193e4c2a1b47c3d8e5f6071"])
    type: Literal["function"] = Field("function", description="Always `function`.")
    function: ChatFunction = Field(description="What is called.")
