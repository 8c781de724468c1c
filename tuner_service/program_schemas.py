"""Wire models of programs that come as data."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

KnobOut = int | str | bool
EXAMPLE = {
    "schema": 1,
    "name": "matmul",
    "sizes": ["M", "N", "K"],
    "knobs": [{"name": "block_M", "default": 128}],
    "variants": [{"values": {}, "program": {"schema": 1}}],
}
# The body is read by the strict reader of documents, in a process of its own.
REQUEST: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "a program as data, as `tilecore recommend --service` sends it",
        "content": {
            "application/json": {
                "schema": {
                    "title": "PortableProgram",
                    "type": "object",
                    "required": ["schema", "name", "sizes", "knobs", "variants"],
                    "additionalProperties": False,
                    "properties": {
                        "schema": {"type": "integer", "const": 1},
                        "name": {"type": "string", "maxLength": 128},
                        "sizes": {"type": "array", "maxItems": 16, "items": {"type": "string"}},
                        "knobs": {"type": "array", "maxItems": 16, "items": {"type": "object"}},
                        "lowering": {"type": "object"},
                        "variants": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": 64,
                            "items": {"type": "object"},
                        },
                    },
                },
                "example": EXAMPLE,
            }
        },
    }
}


class OpenKnobOut(BaseModel):
    """An open knob of a program."""

    name: str
    default: KnobOut | None = Field(description="what the author would have")
    values: list[KnobOut] | None = Field(description="null: the service chooses, by the device")


class ProgramOut(BaseModel):
    """A stored program: what a question about it must give, and what it leaves open."""

    digest: str
    name: str
    sizes: list[str] = Field(description="fields of a problem")
    knobs: list[OpenKnobOut]
    variants: int = Field(description="programs it consists of, by values of knobs")
    can_be_tuned: bool = Field(description="whether all parameters are tensors and integers")
    size_bytes: int
    created_by: str
    created_at: datetime


class ProgramDocumentOut(ProgramOut):
    """A stored program, whole."""

    document: dict[str, Any]


class ProgramBrief(BaseModel):
    """A stored program by name."""

    digest: str
    name: str
    size_bytes: int
    created_by: str
    created_at: datetime


class ProgramPage(BaseModel):
    """Some programs, newest first."""

    items: list[ProgramBrief]
    next_cursor: str | None
