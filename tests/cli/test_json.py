# SPDX-License-Identifier: LGPL-3.0-or-later
"""docs/json: a schema for every verb, and every verb's answer as its schema says. What other tests
get in JSON is held against the schemas too (conftest.py); here each verb succeeds once, and fails."""

import os

import pytest

import schemas
from conftest import DEGRADED, OK, verbs


def test_every_verb_has_a_schema_and_no_other_has(site):
    assert schemas.verbs() == set(verbs(site))


@pytest.mark.parametrize('name', sorted(schemas.names()))
def test_schemas_are_schemas(name):
    schemas.validator(name)


@pytest.fixture
def succeeded(either, monkeypatch):
    """What each verb answered where it did not fail: {verb: answer}."""
    found = {}

    def answered(argv, answer):
        schemas.validate_answer(argv, answer)
        if 'error' not in answer:
            found[schemas.verb_of(argv)] = answer

    monkeypatch.setattr('conftest.validate_answer', answered)
    either.succeeded = found
    return either


def test_every_verb_answers_by_its_schema(succeeded):
    site = succeeded
    site.json('share', 'create', 'tank/a')
    site.json('share', 'set', 'tank/a', 'nfs.clients=*:ro', 'lab:x=1')
    site.json('share', 'get', 'tank/a')
    site.json('share', 'list')
    site.json('dataset', 'ingest', 'tank/set', site.tree(), '--no-seal')
    site.json('dataset', 'seal', 'tank/set')
    site.json('dataset', 'set', 'tank/set', 'comment=x')
    site.json('dataset', 'get', 'tank/set')
    site.json('dataset', 'list')
    site.json('dataset', 'verify', 'tank/set')
    site.json('dataset', 'destroy', 'tank/set', '--yes')
    site.json('share', 'destroy', 'tank/a', '--yes')
    site.json('pool', 'set', 'tank', 'comment=x')
    site.json('pool', 'get', 'tank')
    site.json('pool', 'check', 'tank')
    site.json('pool', 'attach', 'tank')
    site.json('pool', 'status', 'tank')
    site.json('pool', 'list')
    site.json('status')
    if site.is_served:
        site.json('serve', 'tank', '--stop')
    site.json('serve', 'tank')
    site.json('pool', 'iostat', 'tank')
    site.json('serve', 'tank', '--stop')
    os.unlink(site.devices_of_tank[3])
    site.devices_of_tank[3] = site.device('spare')
    site.json('pool', 'replace', 'tank', '3', site.devices_of_tank[3])
    site.json('pool', 'export', 'tank')
    assert site.json('pool', 'import', '--device-dir', site.devices_dir)['pools']
    site.json('pool', 'import', 'tank', '--device-dir', site.devices_dir)
    site.json('pool', 'destroy', 'tank', '--yes')
    site.json('pool', 'create', 'tank', '--data', '2', '--parity', '1', '--cell', '4K',
              *site.devices_of_tank)
    # Those of the appliance and of a cluster succeed there alone: tests/lab and tests/ha hold them against the schemas.
    assert set(site.succeeded) == {words for words in verbs(site) if words[0] not in ('node', 'cluster', 'service', 'client')}
    if site.is_served:
        site('serve', 'tank')


def test_pools_that_cannot_be_opened(pool):
    for path in pool.devices_of_tank[:3]:
        os.unlink(path)
    assert pool.json('status', rc=DEGRADED)['pools'][0]['health'] == 'unknown'
    assert pool.json('pool', 'list', rc=OK)['pools'][0]['error']['code'] == 'failed'


def test_a_schema_says_no(site):
    """They are strict: what is not described, or missing, fails."""
    answer = site.json('pool', 'list')
    for wrong in ({**answer, 'more': 1}, {'schema': 1}, {**answer, 'schema': 2},
                  {**answer, 'pools': [{'name': 'tank'}]}, {**answer, 'error': {'code': 'failed'}}):
        with pytest.raises(AssertionError):
            schemas.validate_answer(['pool', 'list'], wrong)
