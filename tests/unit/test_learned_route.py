"""What a learned policy sees of a text, its file, and what it chooses."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import UsageError
from registry.learned_route import MAX_BYTES, LearnedPolicy, RouteModel, logistic
from registry.models import ModelRegistry
from registry.route_features import LIMIT, NAMES, features_of
from registry.routing import RouteRequest
from registry.routing_config import policy_of
from registry.testing import ScriptedLLM

FLAT = (0.0, 1.0, 0.0, 0.0)
numbers = st.floats(-100, 100, allow_nan=False).map(lambda value: float(f"{value:.4g}"))
positive = st.floats(0.001, 100).map(lambda value: float(f"{value:.4g}"))
texts = st.text(max_size=300)


def model(**changes):
    return RouteModel(
        **{
            "bias": (0.0, 0.0),
            "shape": (FLAT,) * len(NAMES),
            "kinds": {"sums": (1.0, 0.0)},
            "words": {"prove": (2.0, -3.0, 3.0), "add": (1.0, 2.0, 2.0)},
            **changes,
        }
    )


def policy(threshold=0.5, **changes):
    return LearnedPolicy("small", "large", threshold, model(**changes), {"tasks": 60})


def registry():
    models = ModelRegistry()
    for name, role in (("small", "fast"), ("large", "reasoning")):
        models.register(name, ScriptedLLM([]), roles=(role,))
    return models


models = st.builds(
    RouteModel,
    bias=st.tuples(numbers, numbers),
    shape=st.tuples(*[st.tuples(numbers, positive, numbers, numbers)] * len(NAMES)),
    kinds=st.dictionaries(texts, st.tuples(numbers, numbers), max_size=3),
    words=st.dictionaries(texts, st.tuples(positive, numbers, numbers), max_size=5),
)


@given(st.text())
def test_features_of_any_text_are_finite_and_the_same_each_time(text):
    seen = features_of(text)
    assert len(seen.shape) == len(NAMES)
    assert all(map(math.isfinite, seen.shape))
    assert all(count >= 1 and len(word) >= 2 for word, count in seen.words.items())
    assert features_of(text) == seen


def test_features_are_what_their_names_say():
    words, shape = features_of("Tom pays $1,250.50 for 3 cars, then 20% more.\nHow much? Tom, how much?")
    found = dict(zip(NAMES, shape, strict=True))
    assert (words["tom"], words["much"], words["250"], words.get("3")) == (2, 2, 1, None)
    assert (found["words"], found["sentences"]) == (math.log1p(16), math.log1p(3))
    assert found["words per sentence"] == math.log1p(16 / 3)
    assert found["distinct words"] == 13 / 16
    assert found["numbers"] == math.sqrt(3)  # 1,250.50 and 3 and 20
    assert found["largest number"] == pytest.approx(math.log1p(1250.5))
    assert (found["decimals"], found["percent"], found["money"]) == (1, 1, 1)
    assert (found["lines"], found["questions"], found["beyond ASCII"]) == (math.log1p(1), math.log1p(2), 0)


@pytest.mark.parametrize("text", ["", " ", "\ud800 lone", "9" * 5000, "٣٤ ½ ²", "1," * 300, "İİ ß ﬁ", "\x00\u202e"])
def test_odd_texts_have_features_and_a_score(text):
    assert all(map(math.isfinite, features_of(text).shape))
    assert -1 <= policy().score(RouteRequest(task=text)) <= 1


@pytest.mark.parametrize("piece", ["word 1,2. ", "9", "1,111", "a", "?. ", "\n", "é ", "1" + "," * 9])
def test_a_long_text_costs_no_more_than_its_beginning(piece):
    text = piece * (1_000_000 // len(piece))
    started = time.perf_counter()
    seen = features_of(text)
    assert time.perf_counter() - started < 1
    assert seen.words == features_of(text[:LIMIT]).words
    assert seen.shape[0] == math.log1p(len(text))


def test_a_score_is_the_difference_of_two_logistic_models():
    shape = ((1.0, 2.0, 3.0, -1.0), *(FLAT,) * (len(NAMES) - 1))
    given = policy(bias=(0.5, -0.5), shape=shape)
    text = "prove add add"
    counted = 0.1 * (math.log1p(len(text)) - 1) / 2
    prove, add = 2.0, 1.0 + math.log(2)
    length = math.hypot(prove, add)
    weak = 0.5 + 3 * counted + 1.0 + (-3 * prove + 2 * add) / length
    strong = -0.5 - counted + (3 * prove + 2 * add) / length
    expected = 1 / (1 + math.exp(-strong)) - 1 / (1 + math.exp(-weak))
    assert given.score(RouteRequest(task=text, kind="sums")) == pytest.approx(expected, abs=1e-12)


def test_kinds_and_words_that_were_not_there_weigh_nothing():
    assert policy().score(RouteRequest(task="zebra crossing", kind="never seen")) == 0
    assert policy().score(RouteRequest(task="", kind=None)) == 0


@pytest.mark.parametrize(("value", "expected"), [(0, 0.5), (1e9, 1), (-1e9, 0), (2, 1 / (1 + math.exp(-2)))])
def test_logistic_has_no_overflow(value, expected):
    assert logistic(value) == pytest.approx(expected)


def test_the_strong_model_does_what_scores_at_least_the_threshold():
    score = policy().score(RouteRequest(task="prove"))
    for threshold, chosen in ((score, "large"), (math.nextafter(score, 2), "small")):
        choice = policy(threshold).choose(RouteRequest(task="prove"), registry())
        assert (choice.model, choice.score) == (chosen, score)
        assert f"gain {score:.3f}" in choice.reason


def test_models_may_be_roles_and_must_be_there():
    role = LearnedPolicy("fast", "reasoning", 0.5, model())
    assert role.choose(RouteRequest(task="prove"), registry()).model == "large"
    role.check(registry())
    with pytest.raises(UsageError, match="'huge'"):
        LearnedPolicy("small", "huge", 0.5, model()).check(registry())


@given(models, numbers, st.lists(st.tuples(texts, st.none() | texts), max_size=5))
def test_a_policy_read_again_is_the_same_and_scores_the_same(model, threshold, asked):
    before = LearnedPolicy("small", "large", threshold, model, {"tasks": 60, "note": 'a [1, 2] "b"'})
    after = LearnedPolicy.read(json.loads(before.text()))
    assert after == before
    for text, kind in asked:
        request = RouteRequest(task=text, kind=kind)
        assert after.score(request) == before.score(request)
        assert -1 <= after.score(request) <= 1


def test_a_file_is_read_as_it_was_written_also_by_a_setting(tmp_path):
    saved = policy().save(tmp_path / "policy.json")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.json"]
    assert LearnedPolicy.from_file(tmp_path / "policy.json") == saved
    assert policy_of({"use": "learned", "file": "policy.json"}, base=tmp_path) == saved
    other = policy_of({"use": "learned", "file": "policy.json", "threshold": 0.9}, base=tmp_path)
    assert other.threshold == 0.9
    assert policy_of(other.to_json()) == other


def test_a_file_that_was_written_anew_is_read_anew(tmp_path):
    path = tmp_path / "policy.json"
    policy().save(path)
    assert LearnedPolicy.from_file(path).model == model()
    policy(bias=(1.25, 0.5)).save(path)
    assert LearnedPolicy.from_file(path).model == model(bias=(1.25, 0.5))


def test_a_policy_without_a_file_is_not_named_as_data():
    with pytest.raises(UsageError, match="save it first"):
        policy().to_json()


def data(**changes):
    return {**json.loads(policy().text()), **changes}


def changed(path, value):
    found = data()
    at = found["model"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "must be an object"),
        ({}, "no learned routing policy"),
        (data(version=2), "version is 2"),
        (data(features=0), "features is 0"),
        (data(weak=""), "weak must be the name"),
        (data(strong=7), "strong must be the name"),
        (data(threshold=None), "threshold: None is no finite number"),
        (data(threshold=True), "True is no finite number"),
        (data(threshold=math.nan), "nan is no finite number"),
        (data(threshold="0.5"), "is no finite number"),
        (data(model=[]), "model must be an object"),
        (data(about=1), "about must be an object"),
        (changed(["bias"], [1]), "model.bias must be 2 numbers"),
        (changed(["bias"], "12"), "model.bias must be 2 numbers"),
        (changed(["shape"], {}), "model.shape must have length"),
        (changed(["shape", "length"], [0, 0, 1, 1]), "deviation, must be at least"),
        (changed(["words", "prove"], [1, 2]), "model.words\\['prove'\\] must be 3 numbers"),
        (changed(["words", "prove"], [1, 2, math.inf]), "inf is no finite number"),
        (changed(["words", "prove"], [1, 2, 10**400]), "is no finite number"),
        (changed(["kinds"], None), "model.kinds must be an object"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(value, said, tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        LearnedPolicy.from_file(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "no JSON"),
        (b"\xff\xfe\xff", "no JSON"),
        (b" " * (MAX_BYTES + 1), "larger than"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_json_is_refused(content, said, tmp_path):
    path = tmp_path / "policy.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        LearnedPolicy.from_file(path)


def test_files_that_are_not_there_or_cannot_be_written_are_told(tmp_path):
    with pytest.raises(UsageError, match="can't be read: No such file"):
        LearnedPolicy.from_file(tmp_path / "none.json")
    with pytest.raises(UsageError, match="can't be written"):
        policy().save(tmp_path / "none" / "policy.json")


@pytest.mark.parametrize("threshold", [math.nan, math.inf])
def test_a_threshold_must_be_finite(threshold):
    with pytest.raises(UsageError, match="finite number"):
        policy(threshold)
