# SPDX-License-Identifier: LGPL-3.0-or-later
"""Answers held against docs/json."""

import functools
import json
import os

from jsonschema import Draft202012Validator, RefResolver

DIRECTORY = os.path.join(os.path.dirname(__file__), '..', '..', 'docs', 'json')
SHARED = {'common', 'error', 'progress'}  # not a verb's


def names():
    return {name.removesuffix('.json') for name in os.listdir(DIRECTORY) if name.endswith('.json')}


def verbs():
    """Those that have a schema, as ('pool', 'status')."""
    return {tuple(name.split('-', 1)) for name in names() - SHARED}


@functools.cache
def validator(name):
    with open(os.path.join(DIRECTORY, name + '.json')) as file:
        schema = json.load(file)
    Draft202012Validator.check_schema(schema)
    resolver = RefResolver(f'file://{os.path.realpath(DIRECTORY)}/', schema)
    return Draft202012Validator(schema, resolver=resolver)


def validate(name, value):
    errors = [f'{error.json_path}: {error.message}' for error in validator(name).iter_errors(value)]
    assert not errors, f'{name}.json: {errors}'


def verb_of(argv):
    """The verb of a command line whose words begin with it, or None."""
    found = [words for words in verbs() if tuple(argv[:len(words)]) == words]
    return found[0] if found else None


def validate_answer(argv, answer):
    """The answer of a command line; what names no verb can only fail."""
    words = verb_of(argv)
    if words:
        validate('-'.join(words), answer)
    else:
        validate('error', answer['error'])
