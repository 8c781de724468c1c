"""Documents of programs with seeded damage, for tests that nothing but an error comes of them."""

import copy
import json
import random

SCRAPS = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**30, 0.5, -0.0, "", "x", "a" * 2000, "\x00",
    "int32", "float16", "bool", "add", "copy", [], {}, [[]], ["var", 0], ["var", 10**9],
    ["add", 1, 2],
    ["add", ["var", 0], 0.5], ["const", "int8", 300], ["load", 0, []], {"node": "seq", "stmts": []},
    {"node": "nothing"}, {"buffer": 0}, [0, [0], [1]],
)  # fmt: skip


def places(value, path=()):
    """Yield the path of every value inside a document."""
    yield path
    items = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else items:
        yield from places(inner, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def damaged(document, rng):
    """Return a document with one to three faults: other values, swapped, dropped, doubled parts."""
    made = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        paths = [p for p in places(made) if p]
        if not paths:
            break
        path = rng.choice(paths)
        parent, key = at(made, path[:-1]), path[-1]
        match rng.randrange(6):
            case 0:
                parent[key] = copy.deepcopy(rng.choice(SCRAPS))
            case 1:
                other = rng.choice(paths)
                if other[: len(path)] != path and path[: len(other)] != other:
                    there = at(made, other[:-1])
                    parent[key], there[other[-1]] = there[other[-1]], parent[key]
            case 2:
                del parent[key]
            case 3 if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            case 4:
                parent[key] = copy.deepcopy(at(made, rng.choice(paths)))
            case _:
                value = parent[key]
                if isinstance(value, int | float) and not isinstance(value, bool):
                    parent[key] = value + rng.choice((-1, 1, 2, 64, -100, 2**20))
                elif isinstance(value, dict):
                    value[rng.choice(("op", "at", "extra", "body", "value"))] = rng.choice(SCRAPS)
                else:
                    parent[key] = [value]
    return made


def flipped(text, rng):
    """Return bytes of JSON of which some bits are other ones."""
    data = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def parsed(data):
    """Return what JSON there is in damaged bytes, None where there is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def generator(seed):
    return random.Random(seed)
