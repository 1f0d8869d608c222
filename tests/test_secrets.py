"""Keys from datasette-secrets."""

import asyncio
import time

import pytest
from conftest import KEY
from test_batches import notes
from test_queries import answer_of, codes

from datasette_agent_memory.config import PLUGIN_NAME
from datasette_agent_memory.embeddings import server as providers_of_server
from datasette_agent_memory.watchers import stop_watchers

pytest.importorskip("datasette_secrets")
pytestmark = pytest.mark.asyncio


@pytest.fixture
def served(workspace, index, database, server, openai, make_datasette, monkeypatch):
    from cryptography.fernet import Fernet

    index(workspace(notes(3)), openai)
    server.requests.clear()
    monkeypatch.delenv("OPENAI_API_KEY")
    encryption_key = Fernet.generate_key().decode()
    datasette = make_datasette(
        database, config={"plugins": {"datasette-secrets": {"encryption-key": encryption_key}}}
    )
    datasette.encrypt = Fernet(encryption_key).encrypt
    return datasette


async def set_secret(datasette, value):
    await datasette.get_internal_database().execute_write(
        "insert into datasette_secrets (name, version, encrypted, encryption_key_name)"
        " values ('OPENAI_API_KEY', (select count(*) + 1 from datasette_secrets), ?, 'default')",
        [datasette.encrypt(value.encode())],
    )


async def test_a_key_is_taken_from_the_secrets(served, server, monkeypatch):
    monkeypatch.setattr(providers_of_server, "_SECRET_S", 0.0)
    monkeypatch.setattr(providers_of_server, "_NO_SECRET_S", 0.0)
    await served.invoke_startup()
    # The local server wants no key.
    assert codes(await answer_of(served, "heron 1")) == []
    assert "authorization" not in server.requests[-1].headers
    await set_secret(served, KEY)
    assert codes(await answer_of(served, "heron 2")) == []
    assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    await set_secret(served, "sk-another")
    answer = await answer_of(served, "heron 3")
    assert server.requests[-1].headers["authorization"] == "Bearer sk-another"
    assert "sk-another" not in str(answer)
    status = await served.client.get("/memory/-/agent-memory/status.json")
    assert status.json()["searches"] == "hybrid"


async def test_a_secret_that_cannot_be_decrypted_is_none(served, server):
    await served.invoke_startup()
    served.encrypt = lambda value: b"garbage"
    await set_secret(served, KEY)
    assert codes(await answer_of(served)) == []
    assert "authorization" not in server.requests[-1].headers


async def test_every_key_can_be_set(served):
    from datasette_secrets import get_secrets

    names = {secret.name for secret in await get_secrets(served)}
    assert names >= {"OPENAI_API_KEY", "GEMINI_API_KEY", "VOYAGE_API_KEY", "MISTRAL_API_KEY"}


async def test_a_key_of_the_environment_for_secrets_alone(served, server, monkeypatch):
    monkeypatch.setenv("DATASETTE_SECRETS_OPENAI_API_KEY", "sk-environment")
    await answer_of(served)
    assert server.requests[-1].headers["authorization"] == "Bearer sk-environment"


async def test_a_watcher_embeds_with_a_key_from_the_secrets(served, server, workspace, monkeypatch):
    monkeypatch.setattr(providers_of_server, "_NO_SECRET_S", 0.0)
    served.config["plugins"][PLUGIN_NAME] = {"watch": True}
    try:
        await served.invoke_startup()
        await set_secret(served, KEY)
        workspace({"memory/new.md": "An otter swims."})
        deadline = time.monotonic() + 60
        while not server.requests:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
    finally:
        stop_watchers()
    assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
