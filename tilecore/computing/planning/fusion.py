"""Which nodes of a computation become one kernel.

A kernel has a result, its *root*, and what is needed for it alone: functions of elements,
reductions along the rows, and at most one product or attention, whose result they turn into the
root (an epilogue). Views are no kernels; tensors that several kernels need are stored. Kernels of
elements and rows that read the same, or one another's result, are one in the end, which may have
several results (``together``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tilecore.computing.extents import varies
from tilecore.computing.functions.by_name import attention
from tilecore.computing.functions.parts import in_parts
from tilecore.computing.functions.put import LEAST_WIDTH
from tilecore.computing.functions.reductions import reduced
from tilecore.computing.graph import (
    Node,
    Shape,
    consumers,
    is_cut,
    merged,
    ordered,
    permuted,
    pointwise,
    reshaped,
    rewritten,
    rewritten_beside,
    with_args,
)
from tilecore.computing.planning.halves import in_halves
from tilecore.computing.planning.prologue import prologue_of, with_prologues
from tilecore.ir.dtype import DType

SUMS = ("fold", "added")  # cores of which what they add up may be computed on the way
CORES = ("product", "grouped", "attention", "fold", "added")
WITHOUT_KERNEL = ("input", "view", "call")
PLAIN = ("add", "sub", "mul", "neg", "abs", "cast", "maximum", "minimum")  # as fast as reading
MOST_MEMBERS = 128  # of a kernel: expressions are nested as deep, each pass goes through them
MOST_REPEATED = 4  # operations, one after the other
FEW_COLUMNS = 64  # of a product: its transpose has rows so few that CPUs have a form for them


@dataclass(eq=False)
class Group:
    """The nodes of a kernel.

    Attributes:
        root: its result.
        others: further results, of the same rows.
        members: its nodes, producers first.
        rows: extents of the axes but the last.
        columns: the last one; None while only values per row are known.
        core: its product or attention.
        twin: a second product, of the same left operand.
        takes_twin: whether there may be one.
        has_reductions: whether rows are reduced.
        before: what a sum adds up, and what that is computed of.
    """

    root: Node
    others: list[Node] = field(default_factory=list)
    members: list[Node] = field(default_factory=list)
    rows: tuple[int, ...] = ()
    columns: int | None = None
    core: Node | None = None
    twin: Node | None = None
    takes_twin: bool = False
    has_reductions: bool = False
    before: set[Node] = field(default_factory=set)

    @classmethod
    def of(cls, root: Node, takes_twin: bool) -> Group:
        """Return the group of a root alone."""
        shape = domain(root)
        columns = None if shape[-1] == 1 else shape[-1]
        group = cls(root, rows=shape[:-1], columns=columns, takes_twin=takes_twin)
        group._add(root)
        return group

    def take(self, node: Node, users: Sequence[Node]) -> None:
        """Add a producer that it accepts."""
        if self._is_before(users):
            self.before.add(node)
            self.members.append(node)
        else:
            self._add(node)

    def accepts(self, node: Node, users: Sequence[Node]) -> bool:
        """Return whether the kernel can compute a producer; ``users``: who reads it in the kernel.

        Of a sum these are the nodes that it adds up, or others; operands of products are tensors.
        """
        if node.shape and node.computed_in != self.computed_in:  # one number is any kernel's
            return False
        if self._is_before(users):
            assert self.core is not None
            whole = self.core.producers[0].shape
            return node.kind == "pointwise" and _columns(node) in (None, whole[-1])
        if any(user in self.before or user in (self.core, self.twin) for user in users):
            return False
        checks = {
            "pointwise": self._fits,
            "reduce": self._reduces,
            **dict.fromkeys(CORES, self._ends),
        }
        check = checks.get(node.kind)
        is_full = node.kind == "pointwise" and len(self.members) >= MOST_MEMBERS
        return check is not None and not is_full and check(node)

    def _is_before(self, users: Sequence[Node]) -> bool:
        """Return whether what these read is what a sum adds up."""
        if self.core is None or self.core.kind not in SUMS:
            return False
        return all(user is self.core or user in self.before for user in users)

    def _add(self, node: Node) -> None:
        self.members.append(node)
        if node.kind in (*CORES, "unpacked"):
            self.members += reversed(prologue_of(node))
            if self.core is None:
                self.core = node
            else:
                self.twin = node
        elif node.kind == "reduce":
            self.has_reductions = True
            self.columns = node.producers[0].shape[-1]
        elif node.kind == "pointwise" and self.columns is None:
            self.columns = _columns(node)

    def _fits(self, node: Node) -> bool:
        return self.columns is None or _columns(node) in (None, self.columns)

    def _reduces(self, node: Node) -> bool:
        columns = node.producers[0].shape[-1]
        is_of_rows = node.shape == (*self.rows, 1) and self.root.kind != "joined"
        return is_of_rows and self.core is None and self.columns in (None, columns)

    def _ends(self, node: Node) -> bool:
        is_free = self.core is None and not self.has_reductions and self.root.kind != "joined"
        return (is_free or self._is_twin(node)) and node.shape == self.root.shape

    def _is_twin(self, node: Node) -> bool:
        """Return whether a product reads the same rows as the one that is there."""
        if not self.takes_twin or self.core is None or self.twin is not None:
            return False
        if prologue_of(node) or prologue_of(self.core):
            return False
        if node.kind != self.core.kind or node.kind not in ("product", "grouped"):
            return False
        (a, b, *ends), (other, last, *ends_of_last) = node.producers, self.core.producers
        is_turned = [product.attrs.get("trans_a") for product in (node, self.core)]
        if a is not other or is_turned[0] != is_turned[1] or ends != ends_of_last:
            return False
        return b.shape[:-2] == last.shape[:-2]

    @property
    def computed_in(self) -> str:
        """The type of its numbers between loads and stores."""
        return self.root.computed_in

    @property
    def is_of_rows(self) -> bool:
        """Whether it is functions of elements and reductions of rows alone."""
        return self.core is None and self.root.kind != "joined"

    @property
    def roots(self) -> tuple[Node, ...]:
        """All of its results."""
        return (self.root, *self.others)

    @property
    def operands(self) -> list[Node]:
        """The tensors that it reads."""
        own = set(self.members)
        found = {p: None for node in self.members for p in node.producers if p not in own}
        return list(found)


def _columns(node: Node) -> int | None:
    """Return the extent of the last axis; None: it has an element per row, or one."""
    last: int = node.shape[-1] if node.shape else 1
    return None if last == 1 else last


def domain(root: Node) -> Shape:
    """Return the shape that a kernel runs through: of its result, or of each of its equal parts."""
    return (root.producers[0] if root.kind == "joined" else root).shape or (1,)


def steps(
    roots: Sequence[Node], joins_products: bool, is_on_gpu: bool
) -> tuple[list[Group | Node], list[Node]]:
    """Return inputs, kernels, views and calls in an order in which they can run, and the results.

    ``joins_products``: two products of one left operand that meet in an expression are one kernel,
    also where they are written as the halves of one.
    """
    roots = rewritten(rewritten(roots, _with_attention), _without_softmax)
    roots = merged(rewritten(roots, _without_expand))
    roots = roots if is_on_gpu else _with_few_rows(roots)
    roots = merged(in_parts(_with_rows_as_made(roots)))
    if joins_products:
        roots = merged(in_halves(roots))
    roots = with_prologues(merged(_in_front_of_views(roots)), is_on_gpu)
    nodes = ordered(roots)
    users, results = consumers(nodes), set(roots)
    owners: dict[Node, list[Group]] = {}
    made: dict[Node, Group] = {}  # by their results
    for node in reversed(nodes):
        if node.kind in (*WITHOUT_KERNEL, "beside"):
            continue
        readers: dict[Group, list[Node]] = {}
        for user in users[node]:
            for group in owners.get(user, ()):
                readers.setdefault(group, []).append(user)
        is_free = node not in results and all(user in owners for user in users[node])
        may_be_taken = is_free and (len(readers) == 1 or _is_repeated(node, list(readers)))
        if may_be_taken and all(group.accepts(node, own) for group, own in readers.items()):
            for group, own in readers.items():
                group.take(node, own)
            owners[node] = list(readers)
        else:
            made[node] = Group.of(node, joins_products)
            owners[node] = [made[node]]
    found: list[Group | Node] = []
    for node in nodes:
        if node.kind in WITHOUT_KERNEL:
            found.append(node)
        elif node.kind == "beside":
            made[node.producers[0]].others.append(node)
        elif node in made:
            made[node].members.reverse()
            found.append(made[node])
    return found, roots


def _in_front_of_views(roots: Sequence[Node]) -> list[Node]:
    """Return roots where functions of a tensor in another shape are of the tensor as it is made.

    The kernel that makes it can compute them, if nobody else reads it. What else they read is read
    in that shape, too; what is computed for them alone, is computed in it.
    """
    return rewritten_beside(roots, _InFront(consumers(ordered(roots)), set(roots)).change)


@dataclass
class _InFront:
    """Changes functions of elements for ``_in_front_of_views``.

    Attributes:
        users: who reads each node, before any was changed.
        results: the roots.
        changed: what became of nodes.
    """

    users: Mapping[Node, Sequence[Node]]
    results: Collection[Node]
    changed: dict[Node, Node] = field(default_factory=dict)

    def change(self, node: Node, before: Node) -> Node:
        """Return what a node becomes; ``before``: what it was, with its producers."""
        found = self.changed[before] = self._moved(node, before)
        return found

    def _moved(self, node: Node, before: Node) -> Node:
        if node.kind != "pointwise":
            return node
        pairs = zip(node.producers, before.producers, strict=True)
        found = [self._made_for(view, shaped, before) for view, shaped in pairs]
        made = next((m for m in found if m is not None), None)
        if made is None:
            return node
        known = dict(zip(node.producers, found, strict=True))
        is_alone = len(known) == 1
        if not is_alone and made.kind not in CORES:  # of elements either kernel reads the others
            return node
        shape, read = made.shape, self._in_shape(before, made.shape)
        old = dict(zip(node.producers, before.producers, strict=True))
        others = {a: made if known[a] is made else read[old[a]] for a in known}
        if None in others.values():
            return node
        args = tuple(others[a] if isinstance(a, Node) else a for a in node.args)
        inner = Node("pointwise", node.op, args, shape, node.dtype, node.attrs, node.span)
        return reshaped(inner, node.shape, node.span)

    def _is_for(self, node: Node, user: Node) -> bool:
        return node not in self.results and set(self.users[node]) == {user}

    def _made_for(self, view: Node, shaped: Node, user: Node) -> Node | None:
        """Return what a function reads in another shape, if it alone does."""
        is_turned = (view.kind, view.op) == ("view", "reshape") and view.shape == user.shape
        if not is_turned or not self._is_for(shaped, user):
            return None
        (made,) = view.producers
        is_first = shaped.kind == "view"  # else it is in front of the view by now
        is_shared = is_first and not self._is_for(shaped.producers[0], shaped)
        return None if made.kind in WITHOUT_KERNEL or is_shared else made

    def _in_shape(self, user: Node, shape: Shape) -> dict[Node, Node | None]:
        """Return what a function reads in another shape; what is for it alone is computed so."""
        found: dict[Node, Node | None] = {}
        own = self._for(user)
        for x in ordered(user.producers, own.__contains__):
            made = self.changed[x]
            args = [found[a] if isinstance(a, Node) else a for a in x.args] if x in own else [None]
            if made.kind == "pointwise" and None not in args:
                attrs = made.attrs
                found[x] = Node("pointwise", x.op, tuple(args), shape, x.dtype, attrs, x.span)
            else:
                found[x] = _in_shape(made, user.shape, shape)
        return found

    def _for(self, user: Node) -> set[Node]:
        """Return functions of elements, of the shape of another one, that are for it alone."""
        found: set[Node] = set()
        stack = [user]
        while stack:
            for made in stack.pop().producers:
                is_of_elements = made.kind == "pointwise" and made.shape == user.shape
                if is_of_elements and made not in self.results and made not in found:
                    found.add(made)
                    stack.append(made)
        while True:
            others = {one for one in found if not found.issuperset({*self.users[one]} - {user})}
            if not others:
                return found
            found -= others


def _in_shape(x: Node, whole: Shape, shape: Shape) -> Node | None:
    """Return a tensor that broadcasts to one shape as it does to another; None: it may be copied.

    ``whole``: of the same elements, in the order in which they lie.
    """
    if x.shape == whole:
        lies_so = x.kind != "view" if x.kind != "input" else "strides" not in x.attrs
        is_back = x.kind == "view" and x.op == "reshape" and x.producers[0].shape == shape
        return reshaped(x, shape, x.span) if lies_so or is_back else None
    are_rows = whole[-1:] == shape[-1:]
    has_rows = x.shape == (*whole[:-1], 1) and whole[-1] != 1
    if are_rows and has_rows and x.kind != "view" and "strides" not in x.attrs:
        return reshaped(x, (*shape[:-1], 1), x.span)
    return x if (x.size == 1 and not x.shape) or (len(x.shape) <= 1 and are_rows) else None


def _is_repeated(node: Node, groups: Sequence[Group]) -> bool:
    """Return whether kernels may as well compute a tensor each as store it and read it.

    It is plain arithmetic of tensors that are stored, and there is no more to read: some of these
    the kernels read anyway, and nothing is written.
    """
    stored = _stored_behind(node, MOST_REPEATED)
    if node.kind != "pointwise" or stored is None:
        return False
    read = [set(group.operands) for group in groups]
    whole = [x for x in stored if x.shape == node.shape]
    again = sum(_itemsize(x) for of in read for x in whole if x not in of)
    return again <= _itemsize(node) * (len(groups) + 1)


def _stored_behind(node: Node, most: int) -> set[Node] | None:
    """Return the tensors of which a node is plain arithmetic; None: it is more than that."""
    if node.kind in WITHOUT_KERNEL:
        return {node}
    if node.kind != "pointwise" or node.op not in PLAIN or not most:
        return None
    found = [_stored_behind(producer, most - 1) for producer in node.producers]
    return None if None in found else set[Node]().union(*(x for x in found if x is not None))


def _itemsize(node: Node) -> int:
    return DType(node.dtype).itemsize


def _without_softmax(node: Node) -> Node:
    """Return a softmax as its steps."""
    if node.kind != "softmax":
        return node
    x, span = node.producers[0], node.span
    top = Node("reduce", "amax", (x,), (*x.shape[:-1], 1), x.dtype, span=span)
    powers = pointwise("exp", pointwise("sub", x, top, span=span), span=span)
    total = reduced("sum", powers, [len(x.shape) - 1], True, span)
    scale = pointwise("div", 1.0, total, span=span)
    return pointwise("mul", powers, scale, span=span, dtype=node.dtype)


def _without_expand(node: Node) -> Node:
    """Return a function of elements that reads a tensor, not the one that repeats it."""
    if node.kind != "pointwise" or not any(map(_is_repeating, node.producers)):
        return node
    args = (a.producers[0] if isinstance(a, Node) and _is_repeating(a) else a for a in node.args)
    return with_args(node, tuple(args))


def _with_few_rows(roots: Sequence[Node]) -> list[Node]:
    """Return roots where products of a transposed tensor that have few columns are transposes.

    ``x.T @ y`` of many rows reads all of ``x`` to turn it; ``y.T @ x`` reads it where it lies.
    """
    users = consumers(ordered(roots))

    def change(node: Node, before: Node) -> Node:
        if node.kind != "product" or not node.attrs["trans_a"] or node.attrs["trans_b"]:
            return node
        is_ended = any(user.kind == "pointwise" for user in users[before])  # by the kernel itself
        if len(node.shape) != 2 or any(map(varies, node.shape)) or is_ended:
            return node
        (x, y), (rows, columns) = node.producers, node.shape
        if not columns <= FEW_COLUMNS < rows:
            return node
        turned = Node(
            "product", "product", (y, x), (columns, rows), node.dtype, node.attrs, node.span
        )
        return permuted(turned, (1, 0), node.span)

    return rewritten_beside(roots, change)


def _with_rows_as_made(roots: Sequence[Node]) -> list[Node]:
    """Return roots where rows that are added up are so in the shape in which they are computed."""
    users = consumers(ordered(roots))

    def change(node: Node, before: Node) -> Node:
        if node.kind != "added":
            return node
        rows, *rest = node.producers
        (made,) = rows.producers if (rows.kind, rows.op) == ("view", "reshape") else (rows,)
        old = before.producers[0]
        is_own = made is not rows and len(users[old]) == len(users[old.producers[0]]) == 1
        if not is_own or made.kind != "pointwise" or varies(made.shape[-1]):
            return node
        are_parts = node.shape[1] % made.shape[-1] == 0 and made.shape[-1] >= LEAST_WIDTH
        return with_args(node, (made, *rest)) if are_parts else node

    return rewritten_beside(roots, change)


def _is_repeating(node: Node) -> bool:
    return (node.kind, node.op) == ("call", "expand")


# --- attention ----------------------------------------------------------------------------------


def _with_attention(node: Node) -> Node:
    """Return softmax(q k^T * scale + mask) v as one node."""
    if node.kind != "product" or node.attrs["trans_a"] or node.attrs["trans_b"]:
        return node
    weights, v = _behind_casts(node.producers[0]), node.producers[1]
    found = _scores(weights.producers[0]) if weights.kind == "softmax" else None
    if found is None:
        return node
    scores, scale, mask = found
    q, k = scores.producers
    is_plain = scores.attrs["trans_b"] and not scores.attrs["trans_a"]
    if not is_plain or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or v.dtype != q.dtype:
        return node
    return attention(q, k, v, scale, node.span, mask=mask)


def _scores(x: Node) -> tuple[Node, float, Node | None] | None:
    """Return product, scale and mask of scores; None: they are something else."""
    scale, mask, x = 1.0, None, _behind_casts(x)
    if x.kind == "pointwise" and x.op == "add" and len(x.producers) == 2:
        one, two = map(_behind_casts, x.producers)
        whole = x.shape
        x, mask = (one, two) if _leads_to_product(one) else (two, one)
        if x.shape != whole:
            return None
    while x.kind == "pointwise" and x.op in ("mul", "div") and len(x.producers) == 1:
        number = next(a for a in x.args if not isinstance(a, Node))
        if x.op == "div" and not isinstance(x.args[0], Node):
            return None
        scale = scale * number if x.op == "mul" else scale / number
        x = _behind_casts(x.producers[0])
    return (x, scale, mask) if x.kind == "product" else None


def _leads_to_product(x: Node) -> bool:
    found = _scores(x) if x.kind != "pointwise" or x.op != "add" else None
    return found is not None


def _behind_casts(x: Node) -> Node:
    while x.kind == "pointwise" and x.op == "cast" and not is_cut(x):
        x = x.producers[0]
    return x
