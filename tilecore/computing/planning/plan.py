"""What a computation runs: its kernels, copies, and where its results lie."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Union

from tilecore.autotuner import AutoTuner, set_autotune_inputs
from tilecore.compile_ahead import HELPER, is_known, note
from tilecore.computing import arrays
from tilecore.computing.calls import Call
from tilecore.computing.extents import at, varies
from tilecore.computing.graph import Node
from tilecore.computing.places import Place
from tilecore.computing.planning.fusion import Group
from tilecore.computing.programs.text import Program
from tilecore.computing.reading.trees import Outcome
from tilecore.ir.nodes import PrimFunc
from tilecore.jit import JITImpl, is_cache_enabled
from tilecore.jit_compile import JitOptions, begin, build
from tilecore.kernel import JITKernel
from tilecore.recommending import RecommendedConfig, installed_recommender
from tilecore.tile_config import digest

Before = Callable[["Stage", Sequence[Any]], None]
Values = Mapping[str, int]
_NONE: Mapping[str, Any] = MappingProxyType({})
Step = Union["Launch", "Copy", "Called", Node]


@dataclass(eq=False)
class Stage:
    """A kernel of a computation.

    Attributes:
        group: what it computes.
        program: as text.
        function: the text as ``@tilelang.jit`` has it: knobs -> kernel.
        sample: that of the sizes at hand, where those of ``function`` vary.
        chosen: the config that it runs with, and why.
        kernel: what runs.
    """

    group: Group
    program: Program
    function: JITImpl
    sample: JITImpl
    chosen: RecommendedConfig
    kernel: JITKernel = field(init=False)
    _begun: tuple[PrimFunc, JitOptions, Callable[[], None]] | None = field(init=False, default=None)

    def __repr__(self) -> str:
        chosen = self.chosen
        time_us = f"{chosen.time_s * 1e6:.1f} us {chosen.source}"
        return f"Stage({self.program.name}; {chosen.config}; {time_us})"

    def begin(self) -> None:
        """Have it compiled by another process, which ``build`` waits for."""
        if not hasattr(self, "kernel") and self._begun is None:
            asked = self._asked()
            self._begun = (*asked, begin(*asked))

    def build(self) -> None:
        """Compile it with its config, once."""
        if hasattr(self, "kernel"):
            return
        if self._begun is None:
            self.kernel = build(*self._asked())
            return
        func, options, wait = self._begun
        wait()
        self.kernel, self._begun = build(func, options), None
        note(self.program.sample)

    def _asked(self) -> tuple[PrimFunc, JitOptions]:
        func = self.function.program(**self.chosen.config)
        return func, replace(self.function.options, config=dict(self.chosen.lowering))

    def tune(self, tensors: Sequence[Any], trials: int) -> None:
        """Measure recommended configs on some tensors and take the fastest."""
        advice = recommended(self.program, self.sample, trials)
        configs = [{**c.config, **c.lowering} for c in advice]
        tuner = AutoTuner.from_kernel(self.function, configs)
        tuner.set_profile_args(ref_prog=self._reference)
        with set_autotune_inputs(*tensors):
            found = tuner.run()
        measured = found.latency / 1e3
        self.chosen = replace(
            advice[configs.index(found.config)], time_s=measured,
            interval_s=(measured, measured), source="measured",
            rationale=f"fastest of {len(advice)} configs measured: {measured * 1e6:.1f} us",
        )  # fmt: skip
        self.kernel = found.kernel

    def _reference(self, *tensors: Any) -> Any:
        """Return what the present kernel computes, of copies of what it would write to."""
        over = self.program.overwritten
        at = [i for i, p in enumerate(self.program.inputs) if p.name in over]
        given = [arrays.own(t) if i in at else t for i, t in enumerate(tensors)]
        made = self.kernel.run(*given)
        return made if self.program.results else [given[i] for i in at]


class Ahead:
    """Has kernels compiled by another process while configs of further ones are looked for."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._first: Stage | None = None

    def expect(self, program: Program) -> None:
        """Start the process if a program seems to be new, before a config of it is looked for."""
        if self._is_wanted and not is_known(program.sample):
            HELPER.start()

    def take(self, stage: Stage) -> None:
        """Begin with a kernel, once there is a second one: one alone is compiled here as soon."""
        if not self._is_wanted:
            return
        if self._first is None:
            self._first = stage
        elif stage is not self._first:
            self._first.begin()
            stage.begin()


@dataclass(frozen=True, slots=True)
class Copy:
    """A tensor that is laid out anew: no kernel could read it well where it lies.

    Attributes:
        node: the copy, row-major.
        source: what it is a copy of, maybe in another shape.
    """

    node: Node
    source: Place


@dataclass(frozen=True, slots=True)
class Called:
    """A result of a function of torch that is called as it is.

    Attributes:
        node: the result.
        reads: where the function's tensors lie.
        is_in_place: whether the first of them becomes the result, which the call asks for.
    """

    node: Node
    reads: Sequence[Place]
    is_in_place: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that runs, and what it reads.

    Attributes:
        stage: the kernel.
        reads: where its tensors lie, those among them that it writes to.
        roots: what it returns.
        numbers: extents that it gets beside them.
    """

    stage: Stage
    reads: Sequence[Place]
    roots: tuple[Node, ...]
    numbers: tuple[Any, ...] = ()


@dataclass(eq=False)
class Plan:
    """What one set of sizes is computed by.

    Attributes:
        inputs: nodes of the tensors of a call, by the names of the function's parameters.
        steps: kernels, copies, calls and tensors that the function holds, in order.
        results: places of the tensors that it computes for its caller.
        outcome: what the function returns, and where else these tensors go.
        alignment: of the addresses of tensors that its kernels take, in bytes.
        is_own: whether its kernels are for its sizes alone.
        unread: of each step what no later one reads, and that is no result; None: to be found.
    """

    inputs: Mapping[str, Node]
    steps: Sequence[Step]
    results: Sequence[Place]
    outcome: Outcome
    alignment: int = 1
    is_own: bool = True
    unread: Sequence[Sequence[Node | Call]] | None = None

    def __post_init__(self) -> None:
        if self.unread is None:
            self.unread = self._unread()

    def __repr__(self) -> str:
        names = ", ".join(stage.program.name for stage in self.stages)
        copies = sum(isinstance(step, Copy) for step in self.steps)
        beside = f"; {copies} copies" if copies else ""
        return f"Plan({names}{beside}; {self.time_s * 1e6:.1f} us)"

    @property
    def stages(self) -> list[Stage]:
        """Its kernels; one that several steps run is there once."""
        return list(dict.fromkeys(s.stage for s in self.steps if isinstance(s, Launch)))

    @functools.cached_property
    def held(self) -> list[Any]:
        """Tensors that it reads and that no call passes."""
        nodes = [step for step in self.steps if isinstance(step, Node)]
        return [node.attrs["held"] for node in nodes]

    @property
    def time_s(self) -> float:
        """What its kernels are expected to take together."""
        return sum(s.stage.chosen.time_s for s in self.steps if isinstance(s, Launch))

    def run(self, tensors: dict[str, Any], containers: Mapping[str, Any] = _NONE) -> Any:
        """Return what the function returns for tensors of these sizes, a dict that is emptied.

        ``containers``: lists, dicts and objects of the call, by their place.
        """
        written = {name: tensors[name] for name in self.outcome.writes}
        results = self.computed(tensors)
        return self.outcome.build(results, {**containers, **written} if written else containers)

    def computed(
        self, tensors: dict[str, Any], before: Before = lambda stage, given: None
    ) -> list[Any]:
        """Return the results for tensors of these sizes, a dict that is emptied.

        What no later step reads is let go of at once. ``before`` gets each kernel and its tensors
        before it runs.
        """
        known: dict[Node | Call, Any] = {
            node: arrays.laid(tensors[name], node, self.alignment)
            for name, node in self.inputs.items()
        }
        tensors.clear()
        assert self.unread is not None
        for step, unread in zip(self.steps, self.unread, strict=True):
            if isinstance(step, Launch):
                given = [arrays.read(known, place) for place in step.reads]
                before(step.stage, given)
                made = step.stage.kernel.run(*given, *step.numbers)
                if step.roots:
                    several = made if len(step.roots) > 1 else (made,)
                    known.update(zip(step.roots, several, strict=True))
            elif isinstance(step, Copy):
                known[step.node] = arrays.copied(arrays.at(known, step.source), step.node.shape)
            elif isinstance(step, Called):
                call, place = step.node.attrs["call"], step.node.attrs["place"]
                if call not in known:
                    given = [arrays.at(known, p) for p in step.reads]
                    way = arrays.called_in_place if step.is_in_place else arrays.called
                    known[call] = way(call, given, step.node)
                found = known[call][place]
                is_as_it_is = step.node.attrs.get("is_for_calls")
                if not is_as_it_is and step.node not in self._returned:
                    found = arrays.laid(found, step.node, self.alignment)
                known[step.node] = found
            else:
                known[step] = arrays.laid(step.attrs["held"], step, self.alignment)
            for made in unread:
                del known[made]
        return [
            known[place.memory]
            if place.memory in self._returned
            else arrays.whole(arrays.at(known, place))
            for place in self.results
        ]

    @functools.cached_property
    def _returned(self) -> frozenset[Node]:
        """What calls return and nobody reads here: it keeps the strides that it has there."""
        read = {place.memory for step in self.steps for place in reads_of(step)}
        parts = {p.memory for p in self.results if not p.is_whole or p.shape != p.memory.shape}
        made = [step.node for step in self.steps if isinstance(step, Called)]
        return frozenset(n for n in made if n not in read | parts and "strides" not in n.attrs)

    def _unread(self) -> Sequence[Sequence[Node | Call]]:
        last: dict[Node | Call, int] = {}
        for number, step in enumerate(self.steps):
            last |= dict.fromkeys(
                (*_made(step), *(place.memory for place in reads_of(step))), number
            )
        found: list[list[Node | Call]] = [[] for _ in self.steps]
        for made in last.keys() - {place.memory for place in self.results}:
            found[last[made]].append(made)
        return found

    @functools.cached_property
    def _fixed(self) -> frozenset[int]:
        """The identities of nodes, places and steps that are the same for all sizes."""
        found: set[int] = set()

        def is_fixed(part: Any) -> bool:
            if isinstance(part, Node):
                is_same = _is_fixed(part)
            else:
                parts = [is_fixed(p) for p in _parts(part)]  # all of them are looked at
                is_same = all(parts) and not _has_extents(part)
            found.update([id(part)] if is_same else [])
            return is_same

        for part in (*self.inputs.values(), *self.results, *self.steps):
            is_fixed(part)
        return frozenset(found)

    def of(self, values: Values) -> Plan:
        """Return the plan, whose sizes vary, for some of them."""
        sized = _Sized(values, self._fixed)
        steps = [sized.step(step) for step in self.steps]
        inputs = {name: sized.node(node) for name, node in self.inputs.items()}
        results = [sized.place(place) for place in self.results]
        outcome = self.outcome.of(values)
        unread = [[sized.made(one) for one in found] for found in self.unread or ()]
        return Plan(inputs, steps, results, outcome, self.alignment, is_own=False, unread=unread)


def _is_fixed(node: Node) -> bool:
    call = node.attrs.get("call")
    numbers = (*node.shape, *node.attrs.get("strides", ()))
    return not any(map(varies, numbers)) and not (call and call.has_extents)


def _has_extents(part: Any) -> bool:
    if isinstance(part, Launch):
        return any(map(varies, part.numbers))
    is_place = isinstance(part, Place)
    return is_place and any(map(varies, (part.offset, *part.shape, *part.strides)))


def _parts(part: Any) -> list[Any]:
    """Return what a step or a place is made of."""
    if isinstance(part, Place):
        return [part.memory]
    if isinstance(part, Copy):
        return [part.node, part.source]
    return [*(part.roots if isinstance(part, Launch) else (part.node,)), *part.reads]


class _Sized:
    """The memories and places of a plan for some sizes."""

    def __init__(self, values: Values, fixed: Collection[int]) -> None:
        self._values, self._fixed = values, fixed
        self._nodes: dict[Node, Node] = {}
        self._sized: dict[Call, Call] = {}

    def step(self, step: Step) -> Step:
        if id(step) in self._fixed:
            return step
        if isinstance(step, Node):
            return self.node(step)
        if isinstance(step, Copy):
            return Copy(self.node(step.node), self.place(step.source))
        reads = [self.place(place) for place in step.reads]
        if isinstance(step, Launch):
            numbers = self._numbers(step.numbers)
            return Launch(step.stage, reads, tuple(map(self.node, step.roots)), numbers)
        return Called(self.node(step.node), reads, step.is_in_place)

    def node(self, node: Node) -> Node:
        found = node if id(node) in self._fixed else self._nodes.get(node)
        if found is None:
            attrs = dict(node.attrs)
            if "strides" in attrs:
                attrs["strides"] = self._numbers(attrs["strides"])
            if "call" in attrs:
                attrs["call"] = self._call(attrs["call"])
            found = self._nodes[node] = Node(
                node.kind, node.op, (), self._numbers(node.shape), node.dtype, attrs, node.span
            )
        return found

    def made(self, one: Node | Call) -> Node | Call:
        """Return a tensor, or a call of a step that is sized by now."""
        return self.node(one) if isinstance(one, Node) else self._sized.get(one, one)

    def place(self, place: Place) -> Place:
        if id(place) in self._fixed:
            return place
        return Place(
            self.node(place.memory), at(place.offset, self._values), self._numbers(place.shape),
            self._numbers(place.strides),
        )  # fmt: skip

    def _call(self, call: Call) -> Call:
        found = self._sized.get(call)
        if found is None:
            found = self._sized[call] = call.of(self._values)
        return found

    def _numbers(self, shape: Sequence[Any]) -> tuple[int, ...]:
        return tuple([at(n, self._values) for n in shape])


def written_in_place(steps: Sequence[Step], root: Node, memory: Node) -> list[Step]:
    """Return steps that have an argument be what it is afterwards without a copy, if they can.

    Args:
        steps: of a plan.
        root: what the argument is afterwards.
        memory: the argument.
    """
    at = next((i for i, s in enumerate(steps) if isinstance(s, Called) and s.node is root), None)
    if at is None or not root.attrs["call"].has_in_place:
        return list(steps)
    step, reads = steps[at], [r for s in steps[at + 1 :] for r in reads_of(s)]
    assert isinstance(step, Called)
    place = step.reads[0]
    is_it = place.memory is memory and place.shape == root.shape and root.dtype == memory.dtype
    if not is_it or any(r.memory is memory for r in (*reads, *step.reads[1:])):
        return list(steps)
    return [*steps[:at], replace(step, is_in_place=True), *steps[at + 1 :]]


def _made(step: Step) -> Sequence[Node | Call]:
    if isinstance(step, Launch):
        return step.roots
    if isinstance(step, Called):
        return step.node, step.node.attrs["call"]
    return (step if isinstance(step, Node) else step.node,)


def reads_of(step: Step) -> Sequence[Place]:
    """Return where the tensors lie that a step reads."""
    if isinstance(step, Node):
        return ()
    return (step.source,) if isinstance(step, Copy) else step.reads


def recommended(program: Program, sample: JITImpl, count: int) -> Sequence[RecommendedConfig]:
    """Return the recommender's configs of a program at the sizes at hand, best first."""
    question = sample.question((), {}, top_k=count, space=dict(program.space) or None)
    text = program.sample if is_cache_enabled() else ""
    return installed_recommender()(replace(question, text=text))


def function_of(name: str, text: str, target: Any, module: str) -> JITImpl:
    """Return the function of a program's text, whose lines errors can show.

    What is measured of it is filed under ``module``.
    """
    file = f"<tilecore.compute {name} {digest(text)[:8]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": module}
    exec(compile(text, file, "exec"), names)
    function: JITImpl = names[name]
    function.options = replace(function.options, target=target)
    return function
