"""/v1/nodes: the machines of the cluster, and draining one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from db.records import NodeRecord
from tuner_service.routes.context import Cursor, Limit, Store, page_of
from tuner_service.schemas import NodeOut, NodePage
from tuner_service.web.problems import documented

router = APIRouter(prefix="/nodes", tags=["nodes"])
NodeKey = Annotated[str, Path(max_length=64)]


@router.get("", responses=documented(422))
def list_nodes(
    store: Store, with_lost: bool = False, limit: Limit = 50, cursor: Cursor = None
) -> NodePage:
    """Return machines of the cluster as its leader last saw them, last joined first."""
    found, more = page_of(
        f"nodes:{with_lost}", limit, cursor,
        lambda count, last: store.nodes.list(with_lost=with_lost, limit=count, before=last),
    )  # fmt: skip
    return NodePage(items=[_to_wire(node) for node in found], next_cursor=more)


@router.post("/{node_key:name}:drain", status_code=202, responses=documented(404, 409))
def drain_node(node_key: NodeKey, store: Store) -> NodeOut:
    """Give a node no new trials; what is under way on it ends, then its state is drained."""
    return _to_wire(store.nodes.drain(node_key))


@router.post("/{node_key:name}:undrain", status_code=202, responses=documented(404, 409))
def undrain_node(node_key: NodeKey, store: Store) -> NodeOut:
    """Let a drained node work again."""
    return _to_wire(store.nodes.undrain(node_key))


def _to_wire(node: NodeRecord) -> NodeOut:
    return NodeOut(
        key=node.key,
        name=node.name,
        hardware=node.hardware.name,
        hardware_key=node.hardware.key,
        devices=node.devices,
        state=node.state,  # type: ignore[arg-type]  # the database closes the set
        detail=node.detail,
        joined_at=node.joined_at,
        seen_at=node.seen_at,
    )
