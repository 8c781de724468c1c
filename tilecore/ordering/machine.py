"""Runs an order program: groups of threads that go the same way, in turn, until all are done.

The order of what groups do does not matter to what is found: an access is compared with what its
thread knows, not with when it happens here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecore.ordering.barriers import Meeting, MemoryBarrier
from tilecore.ordering.clocks import Clocks
from tilecore.ordering.code import Branch, Code, Enter, Go, Head, Join, Next, Unrolling
from tilecore.ordering.copies import CopyGroups, StoreGroups
from tilecore.ordering.faults import Faults
from tilecore.ordering.locals import Locals
from tilecore.ordering.operands import FollowsFromData
from tilecore.ordering.products import Products
from tilecore.ordering.program import (
    Act,
    Array,
    Env,
    If,
    Jump,
    Lanes,
    Let,
    Loop,
    Node,
    OrderProgram,
    Seq,
    Value,
    Wait,
    While,
)
from tilecore.ordering.shadow import TENSOR, Shadow
from tilecore.ordering.tensor_shadow import TensorShadow

TURNS = 3  # of a loop whose length follows from data, unless it is taken for none
TENSOR_CELLS = 4 * 512  # columns of tensor memory of a block, 32 lanes each


@dataclass(slots=True)
class Group:
    """Threads at one place of the code."""

    place: int
    env: Env
    waits: Wait | None = None
    site: int = -1

    @property
    def lanes(self) -> Lanes:
        """Return the threads."""
        lanes: Lanes = self.env[0]
        return lanes


@dataclass(slots=True)
class Turn:
    """Threads that have left a loop, or its iteration."""

    left: Array
    skipped: Array


@dataclass(frozen=True, slots=True)
class Guess:
    """What is taken to follow from data.

    Attributes:
        is_contrary: whether branches go the other way.
        turns: of loops.
    """

    is_contrary: bool = False
    turns: int = TURNS


class Machine:
    """The state of a run.

    Attributes:
        guess: of what follows from data.
        has_chosen: whether there were such branches.
        has_open_loops: whether there were such loops.
    """

    def __init__(
        self, program: OrderProgram, code: Code, unrolling: Unrolling, guess: Guess
    ) -> None:
        self.program, self.code, self.unrolling = program, code, unrolling
        self.guess, self.has_chosen, self.has_open_loops = guess, False, False
        count = program.step * program.blocks
        self.exists = np.arange(count) % program.step < program.threads
        missing = np.flatnonzero(~self.exists)
        self.clocks, self.faults = Clocks(count, missing), Faults(program.sites)
        self.block_of = np.arange(count) // program.step
        self.origin = self.block_of * program.shared_bytes
        size = max(1, program.shared_bytes * program.blocks // program.granule)
        self.shared = Shadow(self.clocks, self.faults, size, program.granule, "shared memory")
        self.tensors: dict[int, TensorShadow] = {}
        self.tensor: Shadow | None = None
        self.locals = Locals()
        self.unread: set[int] = set()  # sites whose address follows from data
        self.words: dict[int, int] = {}  # values in shared memory that are known
        self.meetings: dict[tuple[int, int], Meeting] = {}
        self.barriers: dict[int, MemoryBarrier] = {}
        self.exited = np.zeros(program.blocks, np.int64)
        self.products = Products(self.clocks, self.faults)
        self.copies = CopyGroups(count)
        self.stores: dict[int, StoreGroups] = {}
        self.own_products: dict[int, list[int]] = {}  # times of products, by their unit
        self.loading: dict[int, dict[int, int]] = {}  # arrays on their way from tensor memory
        self.moves: dict[tuple[bool, int], list[int]] = {}  # times of stores or loads of warps
        self.arrived_at_cluster: dict[int, Wait] = {}  # threads that have not waited since
        self.turns: list[Turn] = []
        self.parked: dict[tuple[Any, ...], list[Group]] = {}
        self.expected: dict[tuple[Any, ...], Array] = {}
        self.runnable: deque[Group] = deque()
        self.choices: dict[int | Node, int] = {}  # of conditions that follow from data, by place
        self.left_out: dict[int, int] = {}  # turns of long loops, by how many they have

    def tensor_shadow(self, slot: int) -> TensorShadow:
        """Return the shadow of a tensor that the block reads and writes."""
        if slot not in self.tensors:
            size = self.program.globals[slot]
            self.tensors[slot] = TensorShadow(self.clocks, self.faults, size)
        return self.tensors[slot]

    def is_alike_in_blocks(self, value: Array) -> bool:
        """Return whether a value is the same in all threads of each of several blocks."""
        of_blocks = value.reshape(self.program.blocks, -1)
        return self.program.blocks > 1 and bool((of_blocks == of_blocks[:, :1]).all())

    def tensor_memory(self) -> Shadow:
        """Return the shadow of tensor memory: of each block, by column and quarter of lanes."""
        if self.tensor is None:
            size = TENSOR_CELLS * self.program.blocks
            self.tensor = Shadow(self.clocks, self.faults, size, 1, TENSOR)
        return self.tensor

    # --- scheduling ---------------------------------------------------------------------------

    def run(self) -> None:
        """Run all threads to their end."""
        env = self._env([None] * self.code.slots)
        for slot, value in self.program.setup.items():
            env[slot] = value
        env[0] = Lanes(self.exists)
        self.runnable.append(Group(0, env))
        while self.runnable or self.parked:
            ready = [g for g in self.runnable if g.waits is None or g.waits()]
            if not ready and not self._release():
                self._deadlock()
                return
            for group in ready:
                self.runnable.remove(group)
                group.waits = None
                self._step(group)
        self._end()

    def _env(self, values: list[Any]) -> Env:
        env = Env(values)
        env.machine = self
        return env

    def _release(self) -> bool:
        """Let groups go on that have waited for others in vain; return whether there were any."""
        groups = [g for some in self.parked.values() for g in some]
        self.parked.clear()
        for group in groups:
            group.place += 1
            self.runnable.append(group)
        return bool(groups)

    def _step(self, group: Group) -> None:
        """Run a group until it waits, parks or ends."""
        steps = self.code.steps
        while group.place < len(steps):
            match steps[group.place]:
                case Act(site=site) as act:
                    waits = self._act(act, group.env)
                    group.place += 1
                    if waits is not None and not waits():
                        group.waits, group.site = waits, site
                        self.runnable.append(group)
                        return
                case Join(counters=counters):
                    if not self._join(group, (group.place, *(group.env[c] for c in counters))):
                        return
                case Branch() | Enter() | Head() | Next() | Go() as step:
                    self._control(group, step)
                case node:
                    self.perform(node, group.env)
                    group.place += 1
        self.exited += np.bincount(self.block_of[group.lanes.ids], minlength=len(self.exited))
        for (block, number), meeting in self.meetings.items():
            if number == 0:
                meeting.settle(self.program.threads - int(self.exited[block]))

    def _act(self, act: Act, env: Env) -> Wait | None:
        try:
            return act.run(self, env)
        except FollowsFromData:
            self.unread.add(act.site)
            return None

    def _control(self, group: Group, step: Branch | Enter | Head | Next | Go) -> None:
        """Send a group to where it goes on."""
        env = group.env
        match step:
            case Branch(cond=cond, other=other, key=key, is_loop=is_loop):
                goes = cond(env)
                if goes is None:
                    goes = self._choose(group.place, is_loop=is_loop)
                self._branch(group, goes, other, key)
            case Enter(start=start, extent=extent, counter=counter):
                trips = extent(env)
                trips = self._guessed_turns() if trips is None else trips
                env[counter : counter + 3] = [0, trips, start(env)]
                group.place += 1
            case Head(slot=slot, counter=counter, out=out, key=key):
                turn, trips, start = env[counter : counter + 3]
                env[slot] = None if start is None else start + turn
                self._branch(group, turn < trips, out, key)
            case Next(counter=counter, head=head):
                env[counter] = self._following(*env[counter : counter + 2])
                group.place = head
            case Go(to=to):
                group.place = to

    def _following(self, turn: int, trips: Value) -> int:
        """Return the turn of a loop after another one; the middle of long loops is left out."""
        turn += 1
        if trips is not None and turn == self.unrolling.first:
            some = trips[self.exists] if isinstance(trips, np.ndarray) else trips
            turn += self._left_out(int(np.min(some)))
        return turn

    def _left_out(self, trips: int) -> int:
        """Return how many turns of a loop are left out.

        As many of loops that are about as long: who fills tiles may turn once more than who
        multiplies them.
        """
        period, how = self.program.period, self.unrolling
        for known, found in self.left_out.items():
            if abs(known - trips) < period:
                return found
        found = max(0, (trips - how.first - how.last - period) // period * period)
        self.left_out[trips] = found
        return found

    def _branch(self, group: Group, cond: Value, other: int, key: Join | None) -> None:
        """Send a group where a condition says, or in two."""
        if isinstance(cond, np.ndarray):
            taken = cond.astype(bool) & group.lanes.bits
            count = int(np.count_nonzero(taken))
            if 0 < count < len(group.lanes.ids):
                self._fork(group, taken, other, key)
                return
            cond = count > 0
        group.place = group.place + 1 if cond else other

    def _choose(self, place: int | Node, *, is_loop: bool = False) -> bool:
        """Return what a condition is taken for: twice True, then False, so that a loop ends."""
        self.choices[place] = self.choices.get(place, 0) + 1
        goes = self.choices[place] % TURNS != 0
        if is_loop:
            return goes and self._guessed_turns() > 0
        self.has_chosen = True
        return goes != self.guess.is_contrary

    def _guessed_turns(self) -> int:
        self.has_open_loops = True
        return self.guess.turns

    def _fork(self, group: Group, taken: Array, other: int, key: Join | None) -> None:
        if key is not None:
            name = (key.place, *(group.env[c] for c in key.counters))
            self.expected.setdefault(name, group.lanes.bits)
        rest = Group(other, self._env(group.env))
        rest.env[0] = Lanes(group.lanes.bits & ~taken)
        self.runnable.append(rest)
        group.env[0] = Lanes(taken)
        group.place += 1

    def _join(self, group: Group, key: tuple[Any, ...]) -> bool:
        """Wait for those who went another way; return whether the group goes on, with them."""
        expected = self.expected.get(key)
        if expected is None:
            group.place += 1
            return True
        parked = self.parked.setdefault(key, [])
        parked.append(group)
        bits = parked[0].lanes.bits.copy()
        for one in parked[1:]:
            bits |= one.lanes.bits
        if not (bits == expected).all():
            return False
        del self.parked[key], self.expected[key]
        group.env[0] = Lanes(bits)
        group.place += 1
        return True

    def _deadlock(self) -> None:
        for group in self.runnable:
            count, first = len(group.lanes.ids), int(group.lanes.ids[0])
            self.faults.add(
                "deadlock", f"{count} threads from thread {first} on wait for ever", group.site
            )

    def _end(self) -> None:
        """Look for what is under way when the threads exit."""
        for site in self.copies.left():
            self.faults.add("in flight", "a cp.async when its thread exits", site)
        for stores in self.stores.values():
            for site in stores.left():
                self.faults.add("in flight", "a bulk store when its thread exits", site)
        self.products.end()

    # --- what needs no waiting ----------------------------------------------------------------

    def perform(self, node: Node, env: Env) -> None:
        """Run a statement in which nobody waits for others."""
        match node:
            case Act():
                self._act(node, env)
            case Let(slot=slot, value=value):
                env[slot] = value(env)
            case Seq(parts=parts):
                for part in parts:
                    self.perform(part, env)
                    if not len(env[0].ids):
                        return
            case If(cond=cond, then=then, other=other):
                goes = cond(env)
                if goes is None and node.is_uniform:
                    goes = self._choose(node)
                self._perform_if(goes, then, other, env)
            case Loop(slot=slot, start=start, extent=extent, body=body):
                self._perform_loop(slot, start(env), extent(env), body, env)
            case While(cond=cond, body=body):
                self._perform_while(cond, body, env)
            case Jump(word=word):
                turn = self.turns[-1]
                gone = turn.left if word == "break" else turn.skipped
                gone |= env[0].bits
                env[0] = Lanes(np.zeros_like(env[0].bits))

    def _perform_if(self, cond: Value, then: Node, other: Node | None, env: Env) -> None:
        lanes: Lanes = env[0]
        if cond is None:
            depth = len(self.turns)
            self.turns.append(self._turn())  # whether a jump is taken is not known
            self.perform(then, env)
            env[0] = lanes
            if other is not None:
                self.perform(other, env)
            env[0] = lanes
            del self.turns[depth:]
            return
        if not isinstance(cond, np.ndarray):
            taken = then if cond else other
            if taken is not None:
                self.perform(taken, env)
            return
        bits = cond.astype(bool) & lanes.bits
        for some, part in ((bits, then), (lanes.bits & ~bits, other)):
            if part is not None and some.any():
                env[0] = Lanes(some)
                self.perform(part, env)
        env[0] = self._left(lanes)

    def _turn(self) -> Turn:
        empty = np.zeros(len(self.block_of), bool)
        return Turn(empty, empty.copy())

    def _left(self, lanes: Lanes) -> Lanes:
        """Return the threads that have not left the iteration."""
        if not self.turns:
            return lanes
        turn = self.turns[-1]
        gone = turn.left | turn.skipped
        return Lanes(lanes.bits & ~gone) if (gone & lanes.bits).any() else lanes

    def _perform_loop(self, slot: int, start: Value, extent: Value, body: Node, env: Env) -> None:
        lanes: Lanes = env[0]
        trips = self._guessed_turns() if extent is None else extent
        is_even = not isinstance(trips, np.ndarray)
        most = int(trips) if is_even else int(lanes.of(trips).max())
        self.turns.append(self._turn())
        turn = 0
        while turn < most:
            bits = lanes.bits if is_even else lanes.bits & (turn < trips)
            left = self.turns[-1].left
            if left.any() or not is_even:
                bits = bits & ~left
                if not bits.any():
                    break
                env[0] = Lanes(bits)
            else:
                env[0] = lanes
            self.turns[-1].skipped[:] = False
            env[slot] = None if start is None else start + turn
            self.perform(body, env)
            turn = self._following(turn, trips) if body in self.code.ordering else turn + 1
        self.turns.pop()
        env[0] = lanes

    def _perform_while(self, cond: Any, body: Node, env: Env) -> None:
        lanes: Lanes = env[0]
        self.turns.append(self._turn())
        for _ in range(1 << 16):
            goes = cond(env)
            unknown = goes is None
            if unknown and not self._guessed_turns():
                break
            bits = lanes.bits & ~self.turns[-1].left
            if not unknown:
                bits = bits & np.asarray(goes, bool)
            if not bits.any():
                break
            env[0] = Lanes(bits)
            self.turns[-1].skipped[:] = False
            self.perform(body, env)
            if unknown:
                self.turns[-1].skipped[:] = False
                self.perform(body, env)
                break
        self.turns.pop()
        env[0] = lanes
