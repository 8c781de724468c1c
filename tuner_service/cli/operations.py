"""What the commands of operators do: API keys, compaction of the log, cost models."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

from pydantic import ValidationError

from db.backup import back_up as back_up_file
from db.records import RetentionPolicy
from db.restore import restore as restore_file
from db.session import Database
from tuner_service import wiring
from tuner_service.cli import console as show
from tuner_service.cli.console import err, out
from tuner_service.errors import InvalidRequest
from tuner_service.schemas import KeyRequest
from tuner_service.settings import Settings


def create_key(settings: Settings, name: str, role: str, *, expires_in_days: int | None) -> None:
    """Make an API key and print it alone on a line, for scripts to keep.

    Raises:
        InvalidRequest: a name that REST would refuse (SV901).
    """
    try:
        KeyRequest(name=name, role=role, expires_in_days=expires_in_days)  # type: ignore[arg-type]
    except ValidationError:
        message = f"name: expected 1 to 64 characters that can be shown, found {name[:80]!r}"
        raise InvalidRequest(message=message) from None
    lifetime = None if expires_in_days is None else timedelta(days=expires_in_days)
    _, secret = wiring.open_store(settings).keys.create(name, role, lifetime=lifetime)
    out.print(secret, soft_wrap=True, highlight=False)
    err.print("send it as `Authorization: Bearer KEY`; it cannot be shown again")


def list_keys(settings: Settings) -> None:
    """Print the API keys, oldest first."""
    show.print_keys(out, wiring.open_store(settings).keys.list())


def revoke_key(settings: Settings, prefix: str) -> None:
    """Refuse an API key from now on."""
    record = wiring.open_store(settings).keys.revoke(prefix)
    out.print(f"{record.prefix} ({record.name}) is refused from now on", highlight=False)


def back_up(settings: Settings, target: Path) -> None:
    """Copy the embedded database into a file.

    Raises:
        InvalidRequest: the database is a server's (SV901).
        BackupFailed: it cannot be copied (DB833).
    """
    database = Database(settings.url)  # as it is: to open it would migrate it
    if database.path is None:
        raise InvalidRequest(
            message=f"expected an embedded database, found {database.shown_url}",
            hint="a server has a tool of its own: pg_dump --format=custom",
        )
    size = back_up_file(database.path, target)
    out.print(f"written: {target}, {size / 2**20:,.1f} MiB", soft_wrap=True, highlight=False)


def restore(settings: Settings, file: Path) -> None:
    """Fill the database of the settings with the rows of a file.

    Raises:
        DatabaseError: the file cannot be read, or the database has rows already (DB835).
    """
    store = wiring.open_store(settings)
    counts = restore_file(file, store.database)
    told = f"{counts['measurement']:,} measurements, {counts['tuning_run']:,} runs"
    out.print(
        f"{store.database.shown_url}: {told}, {sum(counts.values()):,} rows in all",
        soft_wrap=True, highlight=False,
    )  # fmt: skip


def compact(settings: Settings, policy: RetentionPolicy, *, dry_run: bool, vacuum: str) -> None:
    """Remove what a policy does not keep, and say what that was."""
    store = wiring.open_store(settings)
    show.print_compaction(out, store.retention.compact(policy, dry_run=dry_run, vacuum=vacuum))


def list_models(settings: Settings, kernel: str | None, *, limit: int) -> None:
    """Print versions of cost models."""
    store = wiring.open_store(settings)
    name = None
    if kernel is not None:
        from tilecore import kernels

        name = kernels.get(kernel).name
    show.print_models(out, store.models.list(kernel=name, limit=limit))


def upload_model(settings: Settings, file: Path, kernel: str, devices: str) -> None:
    """Store a model of XGBoost and say whether it answers from now on.

    Raises:
        InvalidRequest: the file cannot be read, or there are no such devices (SV901).
        InvalidModel: why it is refused (RC604).
    """
    from recommender.families import schema_of
    from tuner_service.model_uploads import ModelUploads

    _check_devices(devices)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise InvalidRequest(message=f"{file}: cannot be read: {error.strerror}") from error
    sha256 = hashlib.sha256(raw).hexdigest()
    uploads = ModelUploads(wiring.open_store(settings))
    found, _ = uploads.add(kernel, raw, sha256=sha256, feature_schema=schema_of(devices))
    show.print_models(out, [found])


def _check_devices(devices: str) -> None:
    from recommender.families import CPU, family_of_schema, schema_of
    from recommender.hardware import load_profile, nearest_profile, profile_names

    if family_of_schema(schema_of(devices)) is not None:
        return
    gpus = {load_profile(name).family for name in profile_names()} - {CPU}
    like = nearest_profile(devices)
    hint = "a model is of all CPUs, or of all GPUs of an architecture"
    raise InvalidRequest(
        message=f"--devices: expected {CPU} or an architecture ({', '.join(sorted(gpus))}), "
        f"found {devices!r}",
        hint=hint if like is None else f"{hint}; {like.name} is {like.family}",
    )


def activate_model(settings: Settings, model: int) -> None:
    """Go back to a version that was active before."""
    from tuner_service.model_uploads import ModelUploads

    show.print_models(out, [ModelUploads(wiring.open_store(settings)).activate(model)])
