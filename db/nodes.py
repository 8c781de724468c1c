"""Nodes: the machines of the cluster as the leader sees them, and the wish to drain one.

The cluster itself (Ray) knows who is there; this is what people and other processes read of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from db.errors import IllegalTransition, UnknownNode
from db.identities import hardware_id
from db.leader import check_epoch
from db.models import HardwareRow, NodeRow
from db.records import NodeRecord
from db.rows import node_of
from db.session import Database, change
from recommender.hardware import HardwareProfile

GONE = ("lost", "refused")
LEAST_OF_KEY = 4  # digits that name a node whose key begins with them


class Nodes:
    """Machines of the cluster; written by the leader."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def join(
        self, key: str, *, name: str, hardware: HardwareProfile, devices: int, epoch: int,
        refused: str = "",
    ) -> None:  # fmt: skip
        """Note a node that is there (again); ``refused`` says why it cannot be used.

        A wish to drain it stays.
        """
        with self._database.write() as session:
            check_epoch(session, epoch)
            now = self._database.now(session)
            row = session.scalars(select(NodeRow).where(NodeRow.key == key)).first()
            if row is None:
                row = NodeRow(key=key, joined_at=now, state="active")
                session.add(row)
            row.name, row.devices, row.detail, row.seen_at = name, devices, refused, now
            row.hardware_id = hardware_id(session, hardware, now)
            if refused:
                row.state = "refused"
            elif row.state in GONE:
                row.state = "active"

    def see(self, alive: Iterable[str], drained: Iterable[str], epoch: int) -> None:
        """Note which nodes are there and which of those to be drained have ended their work."""
        there, idle = list(alive), list(drained)
        with self._database.write() as session:
            check_epoch(session, epoch)
            now = self._database.now(session)
            seen = update(NodeRow).where(NodeRow.key.in_(there))
            change(session, seen.values(seen_at=now))
            gone = NodeRow.key.not_in(there) & (NodeRow.state != "lost")
            change(session, update(NodeRow).where(gone).values(state="lost"))
            done = NodeRow.key.in_(idle) & (NodeRow.state == "draining")
            change(session, update(NodeRow).where(done).values(state="drained"))

    def drain(self, key: str) -> NodeRecord:
        """Ask that a node gets no new trials; what is under way on it ends.

        Args:
            key: of the node, or its first digits.

        Raises:
            UnknownNode: there is no such node, or there are several (DB813).
            IllegalTransition: it is gone (DB811).
        """
        return self._turn(key, "draining", "drained")

    def undrain(self, key: str) -> NodeRecord:
        """Let a node that was drained work again.

        Args:
            key: of the node, or its first digits.

        Raises:
            UnknownNode: there is no such node, or there are several (DB813).
            IllegalTransition: it is gone (DB811).
        """
        return self._turn(key, "active", "active")

    def list(
        self, *, with_lost: bool = True, limit: int | None = None, before: int | None = None
    ) -> Sequence[NodeRecord]:
        """Return nodes, last joined first; ``before`` is the id to go on from."""
        query = select(NodeRow).order_by(NodeRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(NodeRow.id < before)
        if not with_lost:
            query = query.where(NodeRow.state != "lost")
        with self._database.read() as session:
            return [node_of(row) for row in session.scalars(query)]

    def has_offered(self, hardware_key: str) -> bool:
        """Return whether a node with this hardware was ever part of the cluster."""
        query = select(NodeRow.id).where(
            NodeRow.hardware.has(HardwareRow.key == hardware_key), NodeRow.state != "refused"
        )
        with self._database.read() as session:
            return session.scalars(query.limit(1)).first() is not None

    def offers(self, hardware_key: str) -> bool:
        """Return whether a node with this hardware takes work now."""
        query = select(NodeRow.id).where(
            NodeRow.hardware.has(HardwareRow.key == hardware_key), NodeRow.state == "active"
        )
        with self._database.read() as session:
            return session.scalars(query.limit(1)).first() is not None

    def _turn(self, key: str, state: str, unless: str) -> NodeRecord:
        with self._database.write() as session:
            row = _find(session, key)
            if row.state in GONE:
                raise IllegalTransition(run=row.key, verb=f"made {state}", state=row.state)
            if row.state != unless:
                row.state = state
            return node_of(row)


def _find(session: Session, key: str) -> NodeRow:
    """Return the node with a key, or the one node whose key begins so."""
    query = select(NodeRow).with_for_update()
    row = session.scalars(query.where(NodeRow.key == key)).first()
    if row is not None:
        return row
    beginning = query.where(NodeRow.key.startswith(key, autoescape=True)).limit(2)
    found = session.scalars(beginning).all() if len(key) >= LEAST_OF_KEY else ()
    if len(found) != 1:
        raise UnknownNode(found=key)
    return found[0]
