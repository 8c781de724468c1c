"""``@tilecore.compute``: from a function of whole tensors to tile programs that were chosen for it.

The function is plain Python over torch or NumPy operations. It is read once per set of shapes; its
expressions are fused into kernels (``fusion``), each of which is written down as a TileLang program
(``rows``, ``products``), gets its tile sizes from the recommender, and is compiled. Sums and values
between operations of one kernel are float32 and rounded once.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilecore.compile_ahead import HELPER
from tilecore.computing import arrays
from tilecore.computing.extents import varies
from tilecore.computing.graph import Node, consumers, ordered, rewritten
from tilecore.computing.operands import input_of, need_elements
from tilecore.computing.operands import reading as reading_now
from tilecore.computing.places import (
    GPU_ALIGNMENT_BYTES,
    NamedRows,
    Place,
    Places,
    row_major,
    wanted_order,
)
from tilecore.computing.planning.fusion import Group, steps
from tilecore.computing.planning.overwriting import overwritten
from tilecore.computing.planning.plan import (
    Ahead,
    Called,
    Copy,
    Launch,
    Plan,
    Stage,
    Step,
    function_of,
    reads_of,
    recommended,
    written_in_place,
)
from tilecore.computing.planning.schedule import scheduled
from tilecore.computing.planning.together import together
from tilecore.computing.planning.unread import without_positions
from tilecore.computing.planning.variants import Variant, Variants
from tilecore.computing.planning.varying import Family, Layout, layouts_of
from tilecore.computing.programs import (
    added,
    columns,
    decode,
    grouped,
    long_rows,
    products,
    right_operand,
    rows,
)
from tilecore.computing.programs.named_rows import with_named_rows
from tilecore.computing.programs.text import Program
from tilecore.computing.reading.held import Changing, Held
from tilecore.computing.reading.storage import CALLERS
from tilecore.computing.reading.tensor import (
    Deciding,
    Traced,
    argument,
    need_tensors,
    reading,
    real,
)
from tilecore.computing.reading.trees import Arguments, Outcome, Passed, are_apart
from tilecore.computing.reading.windows import in_its_place
from tilecore.errors import TypeMismatch
from tilecore.frontend.signature import bound_call
from tilecore.gpu_target import GpuTarget
from tilecore.inference.cpu import dots
from tilecore.jit_calls import likeness
from tilecore.runtime.memo import Memo
from tilecore.target import Target, parse_target
from tilecore.tile_config import in_words
from tilecore.torch_trace import is_autocast, is_traced, labelled

_LOG = logging.getLogger("tilecore.computing")


class Computation:
    """What ``@tilecore.compute`` makes of a function: call it with tensors.

    Attributes:
        function: the function, or a module of torch.
        name: of the function; of a module: of its class.
        target: what its kernels are compiled for.
        dynamic: whether kernels are for sizes that vary; None: once they do.
    """

    def __init__(
        self, function: Callable[..., Any], target: Any = "auto", dynamic: bool | None = None,
    ) -> None:  # fmt: skip
        self.function, self.target, self.dynamic = function, target, dynamic
        self.label = labelled(self)
        self._variants = Variants(function)
        self._stages: Memo[Stage] = Memo()
        self.name = getattr(function, "__name__", type(function).__name__)
        try:  # a module of torch has its parameters in ``forward``
            self._signature = inspect.signature(getattr(function, "forward", function))
        except ValueError:  # a function of torch or NumPy itself
            self._signature = inspect.signature(lambda *args, **kwargs: None)
        functools.update_wrapper(self, function, updated=())
        self.__module__ = getattr(function, "__module__", None) or __name__  # torch's own have none

    def __deepcopy__(self, known: Any) -> Computation:
        """Return the computation of a copy of the function: of a module that is copied, its own."""
        function = copy.deepcopy(self.function, known)
        return Computation(function, self.target, self.dynamic)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return where another process finds it: by its name, or what it is of."""
        found: Any = sys.modules.get(self.__module__)
        for name in getattr(self, "__qualname__", "").split("."):
            found = getattr(found, name, None)
        if found is self:
            return str(self.__qualname__)
        return Computation, (self.function, self.target, self.dynamic)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute; tensors are torch's or NumPy's, other arguments are plain Python.

        Lists, dicts and objects may hold tensors; what the function does to them is done to them.
        Where torch keeps gradients, that of the results is torch's own of the function. Where a
        tensor has no elements, and within ``torch.autocast``, the function itself computes.

        Raises:
            UnsupportedSyntax: an operation that computations do not have (TC101).
            ShapeMismatch, TypeMismatch: shapes or element types that do not fit (TC201, TC202).
        """
        if is_traced():
            from tilecore.computing import torch_calls

            return torch_calls.call(self, args, kwargs)
        found = self._found(args, kwargs)
        if found is None:
            return arrays.computed(self.function, args, kwargs)
        plan, tensors, containers = found
        if _wants_gradient((*tensors.values(), *plan.held)):
            from tilecore.computing import torch_calls

            bound = self.bound(args, kwargs)
            return torch_calls.differentiable(self, bound, plan, containers)
        return plan.run(tensors, containers)

    def consume(self, given: list[Any]) -> Any:
        """Return what a call returns, without a gradient; the list of its arguments is emptied.

        Tensors that nobody else holds are let go of once they were read.
        """
        found = self._found(given, {})
        args = () if found else tuple(given)
        given.clear()
        if found is None:
            return arrays.computed(self.function, args, {})
        plan, tensors, containers = found
        return plan.run(tensors, containers)

    def _found(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Plan, dict[str, Any], Mapping[str, Any]] | None:
        """Return the plan of a call, its tensors and containers; None: the function computes."""
        if reading_now() or is_autocast():  # it is part of what is read, or torch converts
            return None
        like, variant = likeness(args, kwargs, ()), self._variants.now()
        known = variant.calls.get(like)
        containers: Mapping[str, Any] = {}
        if known is not None:
            plan, at = known
            tensors = {name: (args if isinstance(p, int) else kwargs)[p] for name, p in at}
        else:
            bound = self.bound(args, kwargs)
            given = Arguments.of(bound.arguments, variant.containers)
            if any(0 in tensor.shape for tensor in given.tensors.values()):
                return None
            plan, given, variant = self._planned(variant, bound, given)
            tensors, containers = given.tensors, given.containers
            places = None if like is None or containers else self._places(plan, args, kwargs)
            if places is not None:
                variant.calls.keep(like, (plan, places))
        if plan.outcome.writes and not are_apart(tensors, plan.outcome.writes, plan.held):
            return None
        return plan, tensors, containers

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Passed:
        """Return the arguments of a call by the function's parameters."""
        return Passed.of(bound_call(self.function, self._signature.bind, args, kwargs), kwargs)

    def run(self, bound: Passed) -> Any:
        """Compute with the arguments of a call, without a gradient."""
        return self(*bound.args, **bound.kwargs)

    def _places(
        self, plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[str, Any]] | None:
        """Return where a plan's tensors stand in a call; None: one is part of an argument."""
        names = list(self._signature.parameters)
        places: dict[str, Any] = {name: i for i, name in enumerate(names[: len(args)])}
        places |= {name: name for name in kwargs}
        is_known = all(name in places for name in plan.inputs)
        return [(name, places[name]) for name in plan.inputs] if is_known else None

    @property
    def plans(self) -> list[Plan]:
        """What calls so far have run."""
        return self._variants.plans

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return what a call would run; raises as a call does."""
        return self._planned(*self._passed(args, kwargs))[0]

    def tune(self, *args: Any, trials: int = 16, **kwargs: Any) -> Plan:
        """Measure configs of every kernel of a call on its tensors; later calls run the fastest.

        The kernels are for its sizes alone.

        Args:
            args: of the call.
            trials: how many of the recommended configs of a kernel are measured.
            kwargs: of the call.

        Raises:
            TuningFailed: no config of a kernel computes what the present one does (TC503).
        """
        plan, given, variant = self._planned(*self._passed(args, kwargs), is_own=True)
        tuned: set[Stage] = set()

        def tune(stage: Stage, tensors: Sequence[Any]) -> None:
            if stage not in tuned:  # several layers may run it
                tuned.add(stage)
                stage.tune(tensors, trials)

        tensors = {k: arrays.own(t) if k in plan.outcome.writes else t
                   for k, t in given.tensors.items()}  # fmt: skip
        plan.computed(tensors, before=tune)
        variant.calls.clear()  # which may know another plan
        return plan

    def programs(self, *args: Any, **kwargs: Any) -> list[str]:
        """Return the tile programs of a call, as text that can be changed and run by itself."""
        return [stage.program.text for stage in self.plan(*args, **kwargs).stages]

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return which kernels a call runs, what was fused, and why their configs were chosen."""
        lines = []
        for step in self.plan(*args, **kwargs).steps:
            if isinstance(step, Copy):
                lines.append(f"copy of {step.node.shape}: its rows do not lie together")
            elif isinstance(step, Called):
                shapes = ", ".join(str(place.shape) for place in step.reads)
                of = f" of {shapes}" if shapes else ""
                name = step.node.op.removeprefix("numpy.")
                whose = "torch's" if name == step.node.op else "NumPy's"
                lines.append(f"{whose} {name}{of}; returns {step.node.shape}")
            elif isinstance(step, Launch):
                stage = step.stage
                computed = [node for node in stage.group.members if node.kind != "view"]
                made = ", ".join(node.op for node in computed)
                reads = zip(stage.program.inputs, step.reads, strict=True)
                read = ", ".join(f"{p.name} {place.shape}" for p, place in reads)
                config = in_words(stage.chosen.config)
                lines += [
                    f"{stage.program.name}: {made}",
                    f"  reads {read}; {_made(step)}",
                    f"  {config}: {stage.chosen.rationale}",
                ]
        return "\n".join(lines)

    @functools.cached_property
    def _alignment(self) -> int:
        """Of the addresses of tensors that kernels of the target take, in bytes."""
        return GPU_ALIGNMENT_BYTES if isinstance(parse_target(self.target), GpuTarget) else 1

    def _new_places(self) -> Places:
        """Return the places of tensors of a new plan."""
        target = parse_target(self.target)
        tiled = dots.tiled(target) if isinstance(target, Target) else ()
        return Places(self._alignment > 1, tiled)

    def _passed(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Variant, Passed, Arguments]:
        """Return which plans serve a call, its arguments, and the tensors among all it passes."""
        variant, bound = self._variants.now(), self.bound(args, kwargs)
        return variant, bound, Arguments.of(bound.arguments, variant.containers)

    def _planned(
        self, variant: Variant, bound: Passed, given: Arguments, is_own: bool = False
    ) -> tuple[Plan, Arguments, Variant]:
        """Return the plan of a call, what is passed to it, and among which plans it is kept.

        ``is_own``: with kernels for its sizes alone.
        """
        while True:
            try:
                return self._plan(variant, bound, given, is_own), given, variant
            except Changing as found:
                if not self._variants.take(found.changes):
                    raise
                variant = self._variants.now()
                given = Arguments.of(bound.arguments, variant.containers)

    def _plan(self, variant: Variant, bound: Passed, given: Arguments, is_own: bool) -> Plan:
        layouts = layouts_of(given.tensors, given.numbers)
        kinds = tuple(
            (k, str(t.dtype), len(t.shape), layouts[k][1] is None) for k, t in given.tensors.items()
        )
        family = kinds, given.structure
        like = family, tuple(layouts.values())
        found = variant.plans.get(like) or variant.sized.get(like)
        if found is None or (is_own and not found.is_own):
            made = None if is_own else self._varying(variant, family, bound, given, layouts)
            found = made or self._read(variant.held, bound, given, layouts)
            (variant.plans if found.is_own else variant.sized).keep(like, found)
        return found

    def _varying(
        self, variant: Variant, like: Any, bound: Passed, given: Arguments,
        layouts: Mapping[str, Layout],
    ) -> Plan | None:  # fmt: skip
        """Return the plan of a call whose sizes vary; None: it gets kernels for its own sizes."""
        if self.dynamic is False:
            return None
        family = variant.families.get(like)
        if family is None:
            family = Family(always=bool(self.dynamic))
            variant.families.keep(like, family)
        found = family.plan(layouts)
        if found is not None:
            return found
        while True:
            varying = family.symbols(layouts)
            if varying is None:
                return None
            sizes, pattern = varying
            try:
                plan = self._read(variant.held, bound, given, pattern)
            except Changing:
                raise
            except Exception:  # noqa: BLE001  # it wants numbers, and errors are to tell of numbers
                _LOG.info("%s is not read with symbols", self.name, exc_info=True)
            else:
                if sizes.fixed != set(sizes.values):
                    family.keep(sizes, pattern, plan)
                return plan.of(sizes.values)
            if not any(isinstance(value, float) for value in sizes.values.values()):
                own = self._read(variant.held, bound, given, layouts)
                family.is_fixed = True  # of a right call
                return own
            family.has_reals = False  # but sizes may vary

    def _read(
        self, held: Held, bound: Passed, given: Arguments, layouts: Mapping[str, Layout]
    ) -> Plan:
        """Return a plan for some layouts, whose kernels are built."""
        try:
            return self._read_once(held, bound, given, layouts, settles=False)
        except Deciding:
            return self._read_once(held, bound, given, layouts, settles=True)

    def _read_once(
        self, held: Held, bound: Passed, given: Arguments, layouts: Mapping[str, Layout],
        settles: bool,
    ) -> Plan:  # fmt: skip
        """Return a plan; ``settles``: what is computed of held tensors is known by now."""
        bound = bound.changed(bound.arguments)
        inputs, traced = {}, dict[str, Any]()
        passed = given.tensors.values()
        with held.watched(), reading(passed, settles) as values:
            for name, tensor in given.tensors.items():
                shape, strides = layouts[name]
                lying = {} if strides is None else {"strides": strides}
                inputs[name] = input_of(name, tensor, shape, **lying)
                traced[name] = argument(inputs[name])
            for name, number in given.numbers.items():
                value = layouts[name][0][0]
                is_real = isinstance(number, float) and varies(value)
                traced[name] = real(value, inputs.values()) if is_real else value
            with given.replaced(bound.arguments, traced) as put:
                returned = self.function(*bound.args, **bound.kwargs)
                tensors = {k: t for k, t in traced.items() if isinstance(t, Traced)}
                written = {k: t for k, t in tensors.items() if t.memory.version}
                outcome, found = given.outcome(returned, put, written, _is_result)
            outcome, nodes = _with_parts(outcome, found, written, inputs)
            need_tensors(nodes)
        held.depend_on(values)
        if not found:
            raise TypeMismatch(
                expected=f"`{self.name}` to return tensors that it computes",
                found=type(returned).__name__,
            )
        from tilecore.computing.reading import creation  # which needs torch

        roots = without_positions(creation.settled(nodes))
        roots = _in_their_places(roots, outcome, inputs)
        owners = [_owner(r) for r in found]
        need_elements(*roots)
        is_on_gpu = self._alignment > 1
        ways = [_steps(roots, False, is_on_gpu)]
        if is_on_gpu:  # CPUs are not faster so, and slower where rows are few
            joined = _steps(roots, True, is_on_gpu)
            ways += [joined] if any(isinstance(g, Group) and g.twin for g in joined[0]) else []
        kernels = sum(isinstance(step, Group) for step in ways[0][0])
        ahead = Ahead(len(ways) == 1 and HELPER.pays(kernels))
        plans = [
            self._drafted(inputs, order, results, self._new_places(), outcome, owners, ahead)
            for order, results in ways
        ]
        plan = min(plans, key=lambda plan: plan.time_s)
        for stage in plan.stages:
            stage.build()
        return plan

    def _drafted(
        self, inputs: Mapping[str, Node], order: Sequence[Group | Node], results: Sequence[Node],
        places: Places, outcome: Outcome, owners: Sequence[int | None], ahead: Ahead,
    ) -> Plan:  # fmt: skip
        """Return a plan whose kernels are to be built.

        ``owners``: of results, as ``_owner`` has them: what others own is copied.
        """
        own = [node for n, node in enumerate(results) if n not in outcome.parts]
        becomes = {inputs[name]: results[number] for name, number in outcome.writes.items()}
        over = overwritten(order, own, becomes)
        for root in over:
            places.overwrite(over[root], root)
        order, rows = with_named_rows(order, results, becomes.keys(), places.is_on_gpu)
        made = list(self._made(order, rows, results, places, ahead))
        at = _needed(results, places)
        made += _copies(places)
        kept = [n for n, node in enumerate(results) if node in over or n in outcome.parts]
        made += _clones(at, {n: o for n, o in enumerate(owners) if o is not None and n not in kept})
        for name, number in outcome.writes.items():
            made = written_in_place(made, results[number], inputs[name])
        made = _without_unread(made, at)
        read = {n for n in order if isinstance(n, Node)} | set(over.values())
        named = {k: n for k, n in inputs.items() if n in read}
        return Plan(named, made, at, outcome, self._alignment)

    def _made(
        self, order: Sequence[Group | Node], rows: Mapping[Node, NamedRows],
        results: Sequence[Node], places: Places, ahead: Ahead,
    ) -> Iterator[Step]:  # fmt: skip
        """Yield what a plan does: kernels, calls, and the copies that these need before.

        ``rows``: named rows, which kernels read where they lie: they are not gathered.
        """
        users, stages = consumers(ordered(results)), dict[Any, Stage]()
        for step in order:
            if isinstance(step, Group):
                readers = [] if step.root in results else users[step.root]
                readers = [reader for reader in readers if reader.kind != "beside"]
                axes = wanted_order(step.root, readers)
                stage, program = self._stage(step, stages, places, axes, ahead)
                ahead.take(stage)
                reads = [p.place for p in program.inputs]
                yield from _copies(places)
                yield Launch(stage, reads, program.results, program.numbers)
            elif step in rows:
                places.name(step, rows[step])
            elif step.kind == "call":
                at = _needed(step.producers, places)
                yield from _copies(places)
                yield Called(step, at)
            elif "held" in step.attrs:
                yield step

    def _stage(
        self, group: Group, known: dict[Any, Stage], places: Places, order: tuple[int, ...] | None,
        ahead: Ahead,
    ) -> tuple[Stage, Program]:  # fmt: skip
        """Return a kernel, one of ``known`` where texts are the same, and a group's program."""
        own = self.name
        name = f"{own if own.isidentifier() else 'computation'}_{len(known)}"  # it may be a lambda
        program, order = written(group, name, places, order)
        if order is not None:
            places.write(group.root, order)
        texts = dict.fromkeys((program.text, program.sample))
        like = tuple(_unnamed(text, name, program) for text in texts)
        if like not in known:
            stage = self._stages.get(tuple(texts))
            if stage is None:
                ahead.expect(program)
                stage = self._new_stage(group, program)
            known[like] = stage
            self._stages.keep(tuple(texts), stage)  # plans of other sizes run it, too
        return known[like], program

    def _new_stage(self, group: Group, program: Program) -> Stage:
        texts = dict.fromkeys((program.text, program.sample))
        made = {t: function_of(program.name, t, self.target, self.__module__) for t in texts}
        function, sample = made[program.text], made[program.sample]
        return Stage(group, program, function, sample, recommended(program, sample, 1)[0])


def _needed(nodes: Sequence[Node], places: Places) -> list[Place]:
    """Return where tensors lie; ``places`` then knows of the copies that they need."""
    found = [places.of(node) for node in nodes]
    for place in found:
        places.need(place)
    return found


def _unnamed(text: str, name: str, program: Program) -> str:
    """Return a program's text without the names of the program and of its tensors."""
    names = {name: "", f"{name}_program": ""} | {
        p.name: f"#{i}" for i, p in enumerate(program.inputs)
    }
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)


def _made(launch: Launch) -> str:
    """Return what a kernel returns, and writes to, in words."""
    shapes = ", ".join(str(root.shape) for root in launch.roots)
    program = launch.stage.program
    over = [p.name for p in program.inputs if p.name in program.overwritten]
    said = [f"returns {shapes}"] * bool(shapes) + [f"writes to {', '.join(over)}"] * bool(over)
    return " and ".join(said)


def _in_their_places(
    roots: Sequence[Node], outcome: Outcome, inputs: Mapping[str, Node]
) -> list[Node]:  # fmt: skip
    """Return results of which those that arguments become are written to these, if they can be."""
    found = list(roots)
    for name, number in outcome.writes.items():
        old = found[number]
        in_place = {old: in_its_place(old, inputs[name])}
        found = rewritten(found, functools.partial(_of_others, in_place))
    return found


def _steps(
    roots: Sequence[Node], joins_products: bool, is_on_gpu: bool
) -> tuple[list[Group | Node], list[Node]]:
    """Return what ``fusion.steps`` does, of kernels that may have several results, scheduled."""
    order, results = steps(roots, joins_products, is_on_gpu)
    return scheduled(together(order, results), results), results


def _of_others(others: Mapping[Node, Node], node: Node) -> Node:
    return others.get(node, node)


def _with_parts(
    outcome: Outcome, found: Sequence[Traced], written: Mapping[str, Traced],
    inputs: Mapping[str, Node],
) -> tuple[Outcome, list[Node]]:  # fmt: skip
    """Return an outcome that tells which results are parts of what is written to, and all nodes.

    The node of such a part is the tensor of the call: nothing is computed for it.
    """
    nodes, parts = [r.node for r in found], dict[int, tuple[str, Place]]()
    names = {id(tensor.memory): name for name, tensor in written.items()}
    for number, result in enumerate(found[: len(found) - len(written)]):
        name = names.get(id(result.memory))
        place = None if name is None else result.memory.place(result.seen)
        if name is not None and place is not None:
            nodes[number], parts[number] = inputs[name], (name, place)
    return replace(outcome, parts=parts), nodes


def _is_result(value: Any) -> bool:
    """Return whether a value is a tensor that is read.

    Raises:
        UnsupportedSyntax: elements that a mask picks, whose number is not known (TC101).
    """
    from tilecore.computing.reading.masked import Masked

    if isinstance(value, Masked):
        raise value.refused()
    return isinstance(value, Traced)


def _owner(result: Traced) -> int | None:
    """Return what results that may share memory have alike; None: with what the call passes."""
    memory = result.memory
    is_written = memory.owner == CALLERS and memory.version and result.seen is memory.base
    is_own = is_written or not any(one.owner for one in memory.kin)
    return id(memory.kin) if is_own else None


def _wants_gradient(tensors: Sequence[Any]) -> bool:
    """Return whether torch would differentiate what is computed of some tensors."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return False
    return any(getattr(tensor, "requires_grad", False) for tensor in tensors)


def written(
    group: Group, name: str, places: Places, order: tuple[int, ...] | None
) -> tuple[Program, tuple[int, ...] | None]:
    """Return the program of a kernel, and the order of the axes of its result in memory.

    ``order`` is the one that readers want; None: that of the axes.
    """
    core = None if group.core is None else group.core.kind
    if decode.is_decoding(group, places.is_on_gpu):
        return decode.decoding(group, name, places, order), order
    if core == "attention":
        return products.attention(group, name, places, order), order
    if core == "added":
        return added.added(group, name, places), None
    if core == "fold":
        return columns.columns(group, name, places), None
    if core == "unpacked":
        return right_operand.unpacked(group, name, places), None
    if core == "grouped":
        return grouped.grouped(group, name, places), None
    if core == "product":
        order = order if products.is_batched(group, places) else None
        return products.product(group, name, places, order), order
    if group.has_reductions:
        found, held = rows.rows(group, name, places)
        if places.is_on_gpu and held > long_rows.HELD:
            found = long_rows.long_rows(group, name, places)
        return found, None
    return rows.elements(group, name, places), None


def _without_unread(steps: Sequence[Step], results: Sequence[Place]) -> list[Step]:
    """Return steps without tensors that the function holds, and whose elements no step reads."""
    read = {place.memory for step in steps for place in reads_of(step)}
    read |= {place.memory for place in results}
    return [step for step in steps if not isinstance(step, Node) or step in read]


def _clones(at: list[Place], owners: Mapping[int, int]) -> list[Copy]:
    """Return copies of results that others own, and have them lie there.

    Args:
        at: where results lie.
        owners: of those that callers get as their own, by number.
    """
    found: list[Copy] = []
    owned: dict[Node, int] = {}
    for i, owner in owners.items():
        place = at[i]
        is_given = place.memory.kind == "input"
        if is_given or owned.setdefault(place.memory, owner) != owner:  # a clone()
            node = Node("input", "copy", (), place.shape, place.memory.dtype)
            found.append(Copy(node, place))
            at[i] = Place(node, 0, place.shape, row_major(place.shape))
    return found


def _copies(places: Places) -> list[Copy]:
    """Return the copies that are needed and not made yet."""
    found = [Copy(node, places.of(node.producers[0])) for node in places.copies]
    places.copies.clear()
    return found


def compute(function: Any = None, *, target: Any = "auto", dynamic: bool | None = None) -> Any:
    """Decorate a function of whole tensors: ``@tilecore.compute``.

    Args:
        function: plain Python over operations of torch or NumPy on its tensors, or a module of
            torch; it returns one or several of them.
        target: what to compile for, as in ``tilelang.jit``.
        dynamic: whether kernels serve sizes that vary. None: the first two sets of sizes get
            kernels of their own, then extents that differed vary. True: all extents, from the first
            call on. False: every set of sizes gets kernels of its own.
    """
    if function is None:
        return lambda f: Computation(f, target, dynamic)
    return Computation(function, target, dynamic)
