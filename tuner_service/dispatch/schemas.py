"""Wire models of dispatch tables; what goes out is the file that ``tilecore.Dispatcher`` reads."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from db.records import DEFAULT_PRIORITY, MAX_SEED, MAX_TIME_S, MAX_TRIALS
from tilecore.kernels.definition import MAX_DIMENSION
from tuner_service.schemas import (
    MAX_THREADS,
    Digest,
    Int,
    KnobFields,
    ProblemFields,
    Seconds,
    Wire,
)

MAX_WIRE_SHAPES = 64
SIZES_TEXT = "^[0-9]{1,7}(:[0-9]{1,7}|(,[0-9]{1,7}){0,63})$"
Size = Annotated[Int, Field(ge=1, le=MAX_DIMENSION)]
Number = Seconds  # finite, and nothing else that JSON has


def _sizes(value: Any) -> Any:
    """Take a list of sizes for the text that names them."""
    if isinstance(value, list):
        if not 1 <= len(value) <= MAX_WIRE_SHAPES or not all(_is_size(v) for v in value):
            raise ValueError(f"expected 1 to {MAX_WIRE_SHAPES} sizes from 1 to {MAX_DIMENSION}")
        return ",".join(str(int(v)) for v in value)
    if not isinstance(value, str) or re.fullmatch(SIZES_TEXT, value) is None:
        raise ValueError(f"expected 'FIRST:LAST', 'A,B,...' or a list of sizes to {MAX_DIMENSION}")
    return value


def _is_size(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 1 <= value <= MAX_DIMENSION and value == int(value)


SizesIn = Annotated[
    str,
    Field(pattern=SIZES_TEXT, examples=["1:4096"]),
    BeforeValidator(
        _sizes,
        json_schema_input_type=Annotated[str, Field(pattern=SIZES_TEXT)]
        | Annotated[list[Size], Field(min_length=1, max_length=MAX_WIRE_SHAPES)],
    ),
]
DimName = Annotated[str, Field(max_length=64)]


class CountedShape(Wire):
    """A shape and how often it is called."""

    sizes: dict[DimName, Size] = Field(min_length=1, max_length=8, examples=[{"m": 16}])
    weight: Annotated[Number, Field(ge=0, le=1e18)] = 1.0


class TableQuestion(Wire):
    """What a dispatch table is to be for."""

    kernel: str | None = Field(
        None, max_length=64, examples=["gemm"], description="of the library; or else `program`"
    )
    program: Digest | None = Field(None, description="digest of a program that was sent before")
    fixed: KnobFields | None = Field(None, description="of a program: knobs that are settled")
    problem: ProblemFields = Field(
        default_factory=dict, examples=[{"n": 1024, "k": 1024}],
        description="fields that do not change",
    )  # fmt: skip
    sizes: dict[DimName, SizesIn] = Field(
        default_factory=dict, max_length=8, examples=[{"m": "1:4096"}],
        description="by dimension FIRST:LAST, A,B,... or a list; ranges are sampled",
    )  # fmt: skip
    shapes: list[CountedShape] = Field(
        default_factory=list, max_length=512,
        description="counted shapes: those of the table, or the weights of the samples of `sizes`",
    )  # fmt: skip
    weighting: Literal["log", "uniform"] = Field("log", description="of ranges without counts")
    samples: Int = Field(32, ge=2, le=MAX_WIRE_SHAPES, description="sizes taken of each range")
    tolerance: Number = Field(
        0.05, ge=0, le=10, description="0.05: every shape within 5 % of its best"
    )
    max_configs: Annotated[Int, Field(ge=1, le=MAX_WIRE_SHAPES)] | None = None
    threads: Int = Field(0, ge=0, le=MAX_THREADS, description="cores to use; 0: all")
    hardware: str | None = Field(
        None, max_length=200, description="name, alias or key; null: the host of the service"
    )

    @model_validator(mode="after")
    def _names_shapes(self) -> Self:
        if not self.sizes and not self.shapes:
            raise ValueError("expected sizes, shapes or both, found neither")
        if not self.sizes and len(self.shapes) > MAX_WIRE_SHAPES:
            raise ValueError(f"expected at most {MAX_WIRE_SHAPES} shapes without sizes")
        return self


class DispatchTableRequest(TableQuestion):
    """Ask for a dispatch table from what is known."""

    trust_predictions: bool = Field(
        False, strict=True, description="also at shapes where something was measured"
    )


class DispatchTuningRequest(TableQuestion):
    """Have the shapes of a dispatch table tuned, then its configs measured at all of them."""

    max_trials: Int = Field(24, ge=1, le=MAX_TRIALS, description="screening trials of a shape")
    time_limit_s: Annotated[Seconds, Field(gt=0, le=MAX_TIME_S)] | None = None
    ceiling_s: Seconds | None = Field(
        None, gt=0, le=MAX_TIME_S, description="a run ends with what it has after so much work"
    )
    priority: Int = Field(DEFAULT_PRIORITY, ge=1, le=1000, description="weight among runs")
    seed: Int = Field(0, ge=0, le=MAX_SEED)
    wait_for_hardware: bool = Field(
        False, strict=True, description="queue runs even where nobody has offered the device yet"
    )


class DispatchTuningOut(BaseModel):
    """Where the tuning of a dispatch table stands; ask again for the table."""

    stage: Literal["tuning", "cross-measuring"]
    runs_by_state: dict[str, int]
    trials: dict[str, int] = Field(description="by status, of all runs")
    planned_trials: int
    runs: list[str] = Field(description="ids, one per shape")


class RangeOut(BaseModel):
    """Sizes, both ends included, that a config serves."""

    first: int
    last: int
    config: int = Field(description="position in `configs`")


class ServedOut(BaseModel):
    """A shape that the table was made from."""

    shape: list[int]
    weight: float
    config: int = Field(description="position in `configs`")
    time_us: float
    interval_us: tuple[float, float]
    best_us: float
    loss: float = Field(description="0.05: 5 % slower than the best known")
    source: Literal["measured", "screened", "predicted", "prior", "analytic"]
    best_source: Literal["measured", "screened", "predicted", "prior", "analytic"]


class DispatchTableOut(BaseModel):
    """A dispatch table, as `tilecore.Dispatcher` reads it from a file."""

    format: Literal["tilecore-dispatch-table"]
    version: Literal[1]
    kernel: str
    program_digest: str
    problem: dict[str, int | str | bool]
    dims: list[str]
    threads: int
    hardware: str
    hardware_key: str
    target: str
    toolchain: dict[str, str]
    tolerance: float
    created_at: str
    rule: Literal["ranges", "nearest"]
    method: str
    reason: str
    configs: list[dict[str, int | str | bool]]
    ranges: list[RangeOut]
    shapes: list[ServedOut]
