"""Organisations of a server, on a whole AWS on loopback that says no where it should."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.aws_server import ROOT_KEYS, Ministack
from valkyrie.domain import DEFAULT_ORG, Identity
from valkyrie.errors import StoreError, UnknownError, UsageError, UserError
from valkyrie.secrets import SecretSource, resolve
from valkyrie.secrets.delivery import Sealer, new_key, parse_keys
from valkyrie.store import Store, tenants
from valkyrie.store.layout import DataFolder
from valkyrie.tenants.organisation import open_organisation
from valkyrie.tenants.server import ServerOrganisation, external_id
from valkyrie.testing.null import check_source

pytest_plugins = ["tests.aws_server"]

S3 = ("s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:ListBucket", "s3:GetBucketLocation")
Open = Callable[[str], ServerOrganisation]


@pytest.fixture(autouse=True)
def servers_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("AWS_", "VALKYRIE_")) or name in (
            "S3_BUCKET",
            "LOG_GROUP",
            "LOG_RETENTION_POLICY",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.setenv("PLANTED", "of-the-servers-environment")


@pytest.fixture
def cloud(ministack: Ministack, monkeypatch: pytest.MonkeyPatch) -> Ministack:
    for name, value in ministack.environment.items():
        monkeypatch.setenv(name, value)
    return ministack


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "home" / "valkyrie.db")
    yield opened
    opened.close()


@pytest.fixture
def open_org(here: Store, tmp_path: Path) -> Open:
    sealer = Sealer(parse_keys(new_key()))

    def open_it(name: str) -> ServerOrganisation:
        with here.writing() as connection:
            known = {one.name: one for one in tenants.orgs(connection)}
            row = known.get(name) or tenants.create_org(connection, name)
        who = Identity(row.id, row.name, "ada@example.com")
        found = open_organisation(who, DataFolder(tmp_path / "home"), store=here, sealer=sealer)
        assert isinstance(found, ServerOrganisation)
        return found

    return open_it


def test_secrets_are_the_organisations_own_and_never_the_servers(open_org: Open) -> None:
    mine, theirs = open_org("mine"), open_org("theirs")
    mine.set_secret("openai", "my-value")
    assert resolve({"KEY": "openai"}, mine.secret_sources()).secrets["KEY"] == "my-value"
    with pytest.raises(UserError, match="without a value"):
        resolve({"KEY": "openai"}, theirs.secret_sources())
    with pytest.raises(UserError, match="without a value"):
        resolve({"PLANTED": "PLANTED"}, open_org(DEFAULT_ORG).secret_sources())
    assert dict(mine.variables()) == {} and not mine.trusted
    assert [(one.name, one.created_by) for one in mine.secrets()] == [("openai", "ada@example.com")]
    mine.remove_secret("openai")
    assert mine.secrets() == []


def test_stored_secrets_keep_the_contract_of_sources(open_org: Open) -> None:
    number = iter(range(10))

    def make(values: Mapping[str, str]) -> SecretSource:
        one = open_org(f"org-{next(number)}")
        for name, value in values.items():
            one.set_secret(name, value)
        return one.secret_sources()[0]

    check_source(make)


def test_without_a_key_nothing_is_kept(here: Store, tmp_path: Path) -> None:
    one = open_organisation(Identity(), DataFolder(tmp_path), store=here, sealer=None)
    with pytest.raises(UserError, match="VALKYRIE_SECRET_KEY"):
        one.set_secret("a", "b")
    assert one.secret_sources()[0].get("a") is None


def test_an_organisation_that_is_gone_is_unknown(here: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownError):
        open_organisation(Identity("nobody"), DataFolder(tmp_path), store=here)


def test_folders_are_apart(open_org: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, ours = open_org("mine"), open_org(DEFAULT_ORG)
    top = tmp_path / "home" / "orgs" / mine.identity.org_id
    assert mine.uploads() == top / "uploads" and ours.uploads() == tmp_path / "home" / "uploads"
    assert mine.library().folder == top / "agents"  # type: ignore[attr-defined]
    assert ours.library().folder == tmp_path / "home" / "agents"  # type: ignore[attr-defined]
    monkeypatch.setenv("VALKYRIE_ARTIFACTS_FOLDER", str(tmp_path / "share"))
    for one in (open_org("mine"), open_org(DEFAULT_ORG)):
        store = one.artifacts()
        assert store
        store.put_text("agents/x.zip", one.identity.org)
    assert (tmp_path / "share" / "agents" / "x.zip").read_text() == DEFAULT_ORG
    assert (tmp_path / "share" / "orgs" / mine.identity.org_id / "agents" / "x.zip").read_text() == "mine"


def test_the_servers_aws_is_the_default_organisations_alone(
    open_org: Open, cloud: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = cloud.bucket()
    monkeypatch.setenv("S3_BUCKET", bucket)
    cloud.secret("servers/openai", "of-the-server")
    ours, mine = open_org(DEFAULT_ORG), open_org("mine")
    assert resolve({"K": "servers/openai"}, ours.secret_sources()).secrets["K"] == "of-the-server"
    assert mine.aws() is None and len(mine.secret_sources()) == 1
    stores = [one.artifacts() for one in (ours, mine)]
    for store in stores:
        assert store
        store.put_text("benchmarks/r/x.json", "{}")
    keys = {one["Key"] for one in cloud.client("s3").list_objects_v2(Bucket=bucket)["Contents"]}
    assert keys == {"benchmarks/r/x.json", f"orgs/{mine.identity.org_id}/benchmarks/r/x.json"}
    logs = mine.logs()
    assert logs and logs.place["group"] == f"benchmarks/orgs/{mine.identity.org_id}"
    logs.close()
    assert stores[1]
    again = mine.artifacts(stores[1].place)
    assert again and again.find("benchmarks/r/x.json")


def test_keys_entered_once_are_checked_sealed_and_used(
    open_org: Open, cloud: Ministack, tmp_path: Path
) -> None:
    mine, bucket = open_org("mine"), cloud.bucket()
    keys = cloud.user(*S3, "secretsmanager:GetSecretValue", "sts:GetCallerIdentity")
    cloud.secret("mine/openai", "of-my-account")
    with pytest.raises(UsageError, match="way into AWS"):
        mine.change({"s3_bucket": bucket})
    with pytest.raises(UserError, match="wrong or were revoked") as caught:
        mine.set_credentials({"aws_access_key_id": "AKIDNOBODY", "aws_secret_access_key": "planted-nobody"})
    assert "planted" not in str(caught.value)
    mine.change({"aws_region": "us-east-1"})
    mine.set_credentials(
        {"aws_access_key_id": keys.access_key_id, "aws_secret_access_key": keys.secret_access_key}
    )
    assert mine.change({"s3_bucket": bucket, "log_group": "off"})["credentials"] is True
    again = open_org("mine")
    assert keys.secret_access_key not in str(again.describe()) + repr(again)
    assert resolve({"K": "mine/openai"}, again.secret_sources()).secrets["K"] == "of-my-account"
    store = again.artifacts()
    assert store and store.place["bucket"] == bucket and again.logs() is None
    with pytest.raises(UsageError, match="remove them before"):
        again.change({"role_arn": "arn:aws:iam::000000000000:role/x"})
    files = b"".join(one.read_bytes() for one in (tmp_path / "home").iterdir() if one.is_file())
    assert keys.secret_access_key.encode() not in files and b"us-east-1" in files
    again.remove_credentials()
    assert open_org("mine").aws() is None and open_org("mine").artifacts() is None
    with pytest.raises(UserError, match="no AWS credentials"):
        open_org("mine").artifacts(store.place)


def test_a_role_is_assumed_with_the_organisations_external_id(open_org: Open, cloud: Ministack) -> None:
    mine, theirs, bucket = open_org("mine"), open_org("theirs"), cloud.bucket()
    asked_for = str(mine.describe()["external_id"])
    assert asked_for == external_id(mine.identity.org_id) != theirs.describe()["external_id"]
    role = cloud.role(asked_for, *S3)
    wanted = {"role_arn": role, "aws_region": "us-east-1", "s3_bucket": bucket}
    assert mine.change(wanted)["role_arn"] == role
    store = open_org("mine").artifacts()
    assert store
    store.check()
    with pytest.raises(UserError, match="AssumeRole"):
        theirs.change(wanted)
    with pytest.raises(UsageError, match="remove role_arn"):
        mine.set_credentials({"aws_access_key_id": "x", "aws_secret_access_key": "y"})


def test_a_role_that_anyone_could_name_is_refused(
    open_org: Open, cloud: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    iam, mine = cloud.client("iam"), open_org("mine")
    anyone = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    open_to_all = json.dumps({"Version": "2012-10-17", "Statement": [anyone]})
    role = f"open-{mine.identity.org_id}"
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=open_to_all)
    wanted = {"role_arn": f"arn:aws:iam::000000000000:role/{role}", "aws_region": "us-east-1"}
    with pytest.raises(UserError, match="sts:ExternalId"):
        mine.change(wanted)
    assert mine.describe()["role_arn"] is None
    monkeypatch.setenv("VALKYRIE_ALLOW_OPEN_ROLES", "true")
    assert mine.change(wanted)["role_arn"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"s3_buckt": "x"}, "Did you mean 's3_bucket'"),
        ({"external_id": "x"}, "no setting 'external_id'"),
        ({"s3_bucket": "s3://x"}, "s3_bucket: S3_BUCKET: the name of a bucket"),
        ({"s3_bucket": ["x"]}, "a bucket's name"),
        ({"aws_region": "nowhere"}, "a region"),
        ({"log_retention_days": 0}, "at least 1"),
        ({"log_group": "benchmarks/orgs/other"}, "the tracker's own"),
        ({"role_arn": "arn:aws:iam::1:user/x"}, "a role's ARN"),
        ({"role_arn": 1}, "must be text"),
    ],
)
def test_settings_that_are_none_change_nothing(open_org: Open, changes: dict[str, object], says: str) -> None:
    mine = open_org("mine")
    with pytest.raises(UsageError, match=says):
        mine.change(changes)
    assert not any(value for name, value in open_org("mine").describe().items() if name != "external_id")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"aws_access_key_id": "planted"},
        {"aws_access_key_id": 1, "aws_secret_access_key": "planted"},
        {"aws_access_key_id": "a", "aws_secret_access_key": "planted", "more": "planted"},
    ],
)
def test_credentials_that_are_none_are_refused(open_org: Open, given: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        open_org("mine").set_credentials(given)
    assert "planted" not in str(caught.value)


def test_the_default_organisation_is_configured_on_its_machine(open_org: Open) -> None:
    ours = open_org(DEFAULT_ORG)
    for ask in (
        lambda: ours.change({"s3_bucket": "x"}),
        lambda: ours.set_credentials({"aws_access_key_id": "x", "aws_secret_access_key": "y"}),
    ):
        with pytest.raises(UsageError, match="valk config set"):
            ask()


def test_another_servers_key_does_not_open_credentials(
    open_org: Open, cloud: Ministack, here: Store, tmp_path: Path
) -> None:
    mine = open_org("mine")
    mine.change({"aws_region": "us-east-1"})
    root = {
        "aws_access_key_id": ROOT_KEYS.access_key_id,
        "aws_secret_access_key": ROOT_KEYS.secret_access_key,
    }
    mine.set_credentials(root)
    strange = Sealer(parse_keys(new_key()))
    one = open_organisation(mine.identity, DataFolder(tmp_path), store=here, sealer=strange)
    with pytest.raises(StoreError, match="cannot be opened"):
        one.aws()
