"""The layers of settings: who wins, what is refused, and what is printed."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.config import (
    OLDER_SPELLINGS,
    OWN_VARIABLES,
    RUNTIME_KEYS,
    CheckpointingMode,
    CheckpointStorage,
    Config,
    Layer,
    RestartStrategyType,
    Retention,
    Settings,
    StateBackend,
    changed,
    describe,
    format_duration,
    parse_duration,
    resolve,
)
from weir.errors import BadValueError, SettingsFileError, UnknownKeyError

TIMEOUT = "heartbeat.timeout"
CHECKPOINTING = "execution.checkpointing."
INTERVAL, MODE = CHECKPOINTING + "interval", CHECKPOINTING + "mode"
COMMIT = "sink.commit"


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "weir.yaml"
    file.write_text(text)
    return file


def refused(expected: type[Exception], **layers: Any) -> str:
    with pytest.raises(expected) as caught:
        resolve(**({"file": None} | layers))
    return str(caught.value)


def test_without_layers_every_key_has_its_default() -> None:
    config = resolve(file=None)
    assert config.settings == Settings()
    assert set(config.origins.values()) == {Layer.DEFAULT}
    assert config.spark == {}
    assert config.origins[TIMEOUT] is Layer.DEFAULT


def test_flinks_defaults() -> None:
    settings = Settings()
    assert settings.heartbeat_interval == timedelta(seconds=10)
    assert settings.heartbeat_timeout == timedelta(seconds=50)
    assert settings.restart_strategy_type is RestartStrategyType.EXPONENTIAL_DELAY
    assert settings.restart_strategy_exponential_delay_max_backoff == timedelta(minutes=1)
    assert settings.restart_strategy_exponential_delay_attempts_before_reset_backoff is None
    assert settings.state_backend_type is StateBackend.ROCKSDB


def test_flinks_defaults_of_checkpointing_and_where_weir_differs() -> None:
    settings = Settings()
    assert settings.execution_checkpointing_mode is CheckpointingMode.EXACTLY_ONCE
    assert settings.execution_checkpointing_timeout == timedelta(minutes=10)
    assert settings.execution_checkpointing_min_pause == timedelta(0)
    assert settings.execution_checkpointing_max_concurrent_checkpoints == 1
    assert settings.execution_checkpointing_unaligned_enabled is False
    assert settings.execution_checkpointing_aligned_checkpoint_timeout == timedelta(0)
    assert settings.execution_checkpointing_interval == timedelta(seconds=10)
    assert settings.execution_checkpointing_tolerable_failed_checkpoints is None
    assert settings.execution_checkpointing_incremental is True
    assert settings.execution_checkpointing_num_retained == 3
    assert (
        settings.execution_checkpointing_externalized_checkpoint_retention is Retention.RETAIN_ON_CANCELLATION
    )
    assert settings.execution_checkpointing_storage is CheckpointStorage.FILESYSTEM


def test_each_layer_is_stronger_than_the_one_before(tmp_path: Path) -> None:
    layers: dict[str, Any] = {"file": written(tmp_path, f"{TIMEOUT}: 61 s")}
    expected = [(61, Layer.FILE), (62, Layer.JOB), (63, Layer.ENVIRONMENT), (64, Layer.COMMAND_LINE)]
    stronger: list[dict[str, Any]] = [
        {},
        {"job_options": {"heartbeat_timeout": "62 s"}},
        {"environ": {"WEIR_HEARTBEAT_TIMEOUT": "63 s"}},
        {"overrides": {TIMEOUT: "64 s"}},
    ]
    for more, (seconds, origin) in zip(stronger, expected, strict=True):
        layers |= more
        config = resolve(**layers)
        assert config.settings.heartbeat_timeout == timedelta(seconds=seconds)
        assert config.origins[TIMEOUT] is origin
        assert config.origins[TIMEOUT] is not Layer.DEFAULT


def test_layers_merge_key_by_key(tmp_path: Path) -> None:
    config = resolve(
        file=written(tmp_path, "restart-strategy.type: fixed-delay"),
        overrides={"restart-strategy.fixed-delay.attempts": "7"},
    )
    assert config.settings.restart_strategy_type is RestartStrategyType.FIXED_DELAY
    assert config.settings.restart_strategy_fixed_delay_attempts == 7


def test_a_file_may_be_flat_nested_or_both(tmp_path: Path) -> None:
    text = """
restart-strategy: fixed-delay
restart-strategy.fixed-delay:
  attempts: 3
heartbeat:
  interval: 1 s
heartbeat.timeout: 5 s
state: {checkpoints.dir: /data, backend: {type: hashmap}}
spark:
  sql.shuffle.partitions: 8
  sql: {adaptive.enabled: false}
"""
    config = resolve(file=written(tmp_path, text))
    assert config.settings.restart_strategy_type is RestartStrategyType.FIXED_DELAY
    assert config.settings.restart_strategy_fixed_delay_attempts == 3
    assert config.settings.heartbeat_interval == timedelta(seconds=1)
    assert config.settings.heartbeat_timeout == timedelta(seconds=5)
    assert config.settings.execution_checkpointing_dir == "/data"
    assert config.settings.state_backend_type is StateBackend.HASHMAP
    assert config.spark == {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "false"}


def test_values_in_a_file_stay_as_they_are_written(tmp_path: Path) -> None:
    text = "execution.checkpointing.dir: 0010\nspark.x: 1e3\nspark.y: off\nspark.z: 1:30"
    config = resolve(file=written(tmp_path, text))
    assert config.settings.execution_checkpointing_dir == "0010"
    assert config.spark == {"spark.x": "1e3", "spark.y": "off", "spark.z": "1:30"}


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    assert resolve(file=written(tmp_path, "# nothing yet\n")).settings == Settings()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a\n- b\n", "not a mapping"),
        ("just text", "not a mapping"),
        ("a: 1\nb: [\n", "not YAML: line 3"),
        ("a: !!python/object:os.system x", "there is no setting"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises((SettingsFileError, UnknownKeyError), match=reason):
        resolve(file=written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    words = refused(SettingsFileError, file=tmp_path / "other.yaml")
    assert "other.yaml" in words and "No such file" in words and "--config" in words


def test_a_short_name_of_the_directory_is_known() -> None:
    config = resolve(file=None, environ={"WEIR_DIR": "/data"})
    assert config.settings.execution_checkpointing_dir == "/data"
    both = {"WEIR_DIR": "/data", "WEIR_EXECUTION_CHECKPOINTING_DIR": "/other"}
    assert "is given in the same place" in refused(BadValueError, environ=both)


def test_nothing_is_proposed_that_is_not_alike() -> None:
    assert "did you mean" not in refused(UnknownKeyError, environ={"WEIR_HOME": "/x"})
    assert "did you mean" not in refused(UnknownKeyError, overrides={"a": "b"})


@pytest.mark.parametrize("old", OLDER_SPELLINGS)
def test_older_spellings_load_and_count_for_the_present_key(old: str) -> None:
    others = {
        "state.backend": "filesystem",
        "restart-strategy": "none",
        "state.backend.incremental": "false",
        "state.checkpoints.num-retained": "5",
        "state.checkpoint-storage": "jobmanager",
        "execution.checkpointing.unaligned": "true",
        "execution.checkpointing.alignment-timeout": "5 s",
    }
    value = others.get(old, "/data")
    config = resolve(file=None, overrides={old: value})
    assert config.origins[OLDER_SPELLINGS[old].key] is not Layer.DEFAULT
    assert old not in config.origins


@pytest.mark.parametrize(
    ("old", "new"), [("memory", "hashmap"), ("filesystem", "hashmap"), ("rocksdb", "rocksdb")]
)
def test_older_state_backends(old: str, new: str) -> None:
    assert resolve(file=None, environ={"WEIR_STATE_BACKEND": old}).text("state.backend.type") == new


def test_an_older_spelling_knows_its_own_values() -> None:
    text = refused(BadValueError, job_options={"state_backend": "disk"})
    assert "memory, filesystem" in text
    assert "the job file" in text


def test_two_different_values_of_one_setting_in_one_layer_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "state.backend: rocksdb\nstate.backend.type: hashmap")
    assert "state.backend = rocksdb is given in the same place" in refused(BadValueError, file=file)
    file = written(tmp_path, "heartbeat.timeout: 60 s\nheartbeat: {timeout: 70 s}")
    assert "heartbeat.timeout = 60 s" in refused(BadValueError, file=file)


@pytest.mark.parametrize(
    ("layers", "nearest", "place"),
    [
        ({"overrides": {"heartbeat.timout": "1 s"}}, "'heartbeat.timeout'", "the command line"),
        ({"environ": {"WEIR_HEARTBEAT_TIMOUT": "1 s"}}, "'WEIR_HEARTBEAT_TIMEOUT'", "the environment"),
        ({"job_options": {"heartbeat_timout": "1 s"}}, "'heartbeat_timeout'", "the job file"),
        ({"job_options": {"heartbeat.timout": "1 s"}}, "'heartbeat.timeout'", "the job file"),
        ({"overrides": {"state.checkpoint.dir": "x"}}, "'execution.checkpointing.dir'", "the command line"),
        ({"overrides": {"heartbeat_timeout": "60 s"}}, "'heartbeat.timeout'", "the command line"),
    ],
)
def test_an_unknown_key_names_the_nearest_and_the_layer(
    layers: dict[str, Any], nearest: str, place: str
) -> None:
    text = refused(UnknownKeyError, **layers)
    assert nearest in text
    assert f"from {place}" in text


def test_an_unknown_key_in_the_file_is_refused_even_if_nothing_is_near(tmp_path: Path) -> None:
    text = refused(UnknownKeyError, file=written(tmp_path, "qqq: {zzz: 1}"))
    assert "'qqq.zzz'" in text
    assert "weir.yaml" in text


def test_weirs_own_variables_and_those_of_others_are_not_settings() -> None:
    environ = dict.fromkeys(OWN_VARIABLES, "3") | {"HOME": "/root", "SPARK_HOME": "/spark"}
    assert resolve(file=None, environ=environ).settings == Settings()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (TIMEOUT, "ten seconds", "a whole number with a unit"),
        (TIMEOUT, "-5 s", "a whole number with a unit"),
        (TIMEOUT, "99999999999 d", "at most 36500 d"),
        (TIMEOUT, "0 s", "longer than 0 s"),
        (TIMEOUT, "5 s", "above heartbeat.interval, which is 10 s"),
        (TIMEOUT, "10 s", "above heartbeat.interval, which is 10 s"),
        ("heartbeat.interval", "2 min", "below heartbeat.timeout, which is 50 s"),
        ("restart-strategy.exponential-delay.max-backoff", "1 ms", "initial-backoff, which is 1 s"),
        ("parallelism.default", "0", "greater than or equal to 1"),
        ("parallelism.default", "many", "valid integer"),
        ("state.changelog.enabled", "yes", "true or false"),
        ("state.backend.type", "memory", "'rocksdb' or 'hashmap'"),
        ("restart-strategy.exponential-delay.jitter-factor", "1.5", "less than or equal to 1"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "nan", "finite"),
        ("execution.checkpointing.dir", "", "it should have at least 1 character"),
        (INTERVAL, "0 s", "longer than 0 s, or off"),
        (INTERVAL, "never", "a whole number with a unit"),
        (INTERVAL + "-records", "0", "greater than or equal to 1"),
        (MODE, "at_most_once", "'exactly_once' or 'at_least_once'"),
        (CHECKPOINTING + "tolerable-failed-checkpoints", "-1", "greater than or equal to 0"),
        (CHECKPOINTING + "num-retained", "0", "greater than or equal to 1"),
        (CHECKPOINTING + "storage", "tape", "'filesystem' or 'memory'"),
        (CHECKPOINTING + "externalized-checkpoint-retention", "no_externalized_checkpoints", "'retain_on"),
        (CHECKPOINTING + "copy-dir", "", "at least 1 character"),
        ("channel.max-segments-ahead", "0", "greater than or equal to 1"),
    ],
)
def test_a_bad_value_names_key_value_layer_and_reason(key: str, value: str, reason: str) -> None:
    text = refused(BadValueError, overrides={key: value})
    for part in (key, repr(value), "the command line", reason):
        assert part in text


def test_the_stronger_of_two_layers_that_contradict_each_other_is_blamed(tmp_path: Path) -> None:
    file = written(tmp_path, "heartbeat.interval: 1 min\n")
    text = refused(BadValueError, file=file, environ={"WEIR_HEARTBEAT_TIMEOUT": "20 s"})
    assert text.startswith("WEIR_HEARTBEAT_TIMEOUT can't be '20 s' (from the environment)")


@pytest.mark.parametrize("value", [True, None, [1], 1.5])
def test_job_options_of_a_wrong_type_are_refused(value: object) -> None:
    refused(BadValueError, job_options={TIMEOUT: value})
    refused(BadValueError, job_options={"sink.max-pending-batches": value})


def test_job_options_take_pythons_own_types() -> None:
    options = {
        "heartbeat_timeout": timedelta(minutes=2),
        "state.changelog.enabled": False,
        "parallelism_default": 4,
        "state_backend_type": StateBackend.HASHMAP,
        "spark.sql.adaptive.enabled": True,
    }
    config = resolve(file=None, job_options=options)
    assert config.settings.heartbeat_timeout == timedelta(minutes=2)
    assert config.settings.state_changelog_enabled is False
    assert config.settings.parallelism_default == 4
    assert config.settings.state_backend_type is StateBackend.HASHMAP
    assert config.spark == {"spark.sql.adaptive.enabled": "true"}


def test_a_stronger_layer_can_take_a_number_back(tmp_path: Path) -> None:
    file = written(tmp_path, "parallelism.default: 8")
    config = resolve(file=file, overrides={"parallelism.default": "unset"})
    assert config.settings.parallelism_default is None
    key = "restart-strategy.exponential-delay.attempts-before-reset-backoff"
    assert resolve(file=None, overrides={key: "infinite"}).text(key) == "infinite"


def test_sparks_keys_pass_through_with_the_stronger_layer_winning(tmp_path: Path) -> None:
    config = resolve(
        file=written(tmp_path, "spark.a: file\nspark.b: file"),
        job_options={"spark.b": "job", "spark.C": 1},
        overrides={"spark.C": "2"},
    )
    assert config.spark == {"spark.a": "file", "spark.b": "job", "spark.C": "2"}
    assert config.origins["spark.b"] is Layer.JOB
    assert config.origins["spark.C"] is not Layer.DEFAULT
    assert "spark.d" not in config.origins


def test_a_list_is_no_value_for_spark(tmp_path: Path) -> None:
    assert "Spark takes text" in refused(BadValueError, file=written(tmp_path, "spark.jars: [a, b]"))


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36500)))
def test_a_duration_that_was_printed_reads_back_the_same(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("value", [5, "5", " 1500 "])
def test_a_plain_number_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r"needs a unit: (5|1500) s"):
        parse_duration(value)
    assert parse_duration(0) == parse_duration("0") == timedelta(0)


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("10 s", "10 s"),
        ("500ms", "500 ms"),
        ("60 s", "1 min"),
        ("90 min", "90 min"),
        ("2 h", "2 h"),
        ("24h", "1 d"),
        ("1 d", "1 d"),
        ("1500ms", "1500 ms"),
        ("0", "0 s"),
    ],
)
def test_durations_print_in_the_shortest_form(text: str, shortest: str) -> None:
    assert format_duration(parse_duration(text)) == shortest


@pytest.mark.parametrize("layers", [{}, {"overrides": {TIMEOUT: "90 s", "spark.x": "y"}}])
def test_a_config_survives_the_wire(layers: dict[str, Any]) -> None:
    config = resolve(file=None, **layers)
    assert Config.from_wire(json.loads(json.dumps(config.to_wire()))) == config


def test_what_is_printed_for_a_value_reads_back_as_the_value() -> None:
    config = resolve(file=None)
    texts = {one.key: config.text(one.key) for one in describe()}
    assert resolve(file=None, overrides=texts).settings == config.settings


def test_every_setting_is_described_and_named_after_its_key() -> None:
    lines = describe()
    assert [line.key for line in lines] == [str(f.alias) for f in Settings.model_fields.values()]
    for line, name in zip(lines, Settings.model_fields, strict=True):
        assert line.key.replace(".", "_").replace("-", "_") == name
        assert line.type
        assert line.default
        assert "\n" not in line.meaning
    assert {old for line in lines for old in line.older} == set(OLDER_SPELLINGS)


def test_no_two_keys_are_the_same_when_written_with_underscores() -> None:
    keys = [*(line.key for line in describe()), *OLDER_SPELLINGS]
    assert len({key.replace(".", "_").replace("-", "_") for key in keys}) == len(keys)


def test_checkpoints_by_time_are_switched_off_with_a_word_only(tmp_path: Path) -> None:
    for off in ("off", "OFF"):
        config = resolve(file=written(tmp_path, f"{INTERVAL}: {off}"))
        assert config.settings.execution_checkpointing_interval is None
        assert config.text(INTERVAL) == "off"
    assert "a duration is" in refused(BadValueError, file=written(tmp_path, f"{INTERVAL}:"))
    assert "a duration is" in refused(BadValueError, job_options={INTERVAL: False})


@pytest.mark.parametrize("word", ["at_least_once", "AT_LEAST_ONCE", "at-least-once", "At_Least-Once"])
def test_flinks_words_are_read_in_any_case_with_dashes_or_underscores(word: str) -> None:
    assert resolve(file=None, overrides={MODE: word}).text(MODE) == "at_least_once"
    assert (
        resolve(file=None, job_options={MODE: CheckpointingMode.AT_LEAST_ONCE}).text(MODE) == "at_least_once"
    )
    retention = CHECKPOINTING + "externalized-checkpoint-retention"
    overrides = {retention: "DELETE_ON_CANCELLATION"}
    assert resolve(file=None, overrides=overrides).text(retention) == "delete_on_cancellation"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ((MODE, "at_least_once"), ("unaligned.enabled", "true"), "never waits at a barrier"),
        ((MODE, "at_least_once"), ("aligned-checkpoint-timeout", "1 s"), "never waits at a barrier"),
        ((CHECKPOINTING + "storage", "memory"), ("copy-dir", "/mnt"), "has no files to copy"),
        ((COMMIT, "checkpoint"), ("mode", "at_least_once"), "agree only if it is aligned"),
        ((COMMIT, "checkpoint"), ("unaligned.enabled", "true"), "agree only if it is aligned"),
        ((COMMIT, "checkpoint"), ("aligned-checkpoint-timeout", "1 s"), "agree only if it is aligned"),
        ((COMMIT, "checkpoint"), ("interval", "off"), "no output would become visible"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_and_the_stronger_is_blamed(
    first: tuple[str, str], second: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    second = (CHECKPOINTING + second[0], second[1])
    for weak, strong in ((first, second), (second, first)):
        file = written(tmp_path, f"{weak[0]}: {weak[1]}")
        text = refused(BadValueError, file=file, overrides=dict([strong]))
        assert text.startswith(f"{strong[0]} can't be '{strong[1]}' (from the command line)")
        assert f"{weak[0]} is {weak[1]}" in text and reason in text


def test_output_that_waits_for_checkpoints_gets_them_by_count_or_by_time() -> None:
    by_count = {COMMIT: "checkpoint", INTERVAL: "off", CHECKPOINTING + "interval-records": "100"}
    resolve(file=None, overrides=by_count).changed({INTERVAL: "off"})
    by_time = resolve(file=None, overrides={COMMIT: "checkpoint"})
    with pytest.raises(BadValueError, match="no output would become visible"):
        by_time.changed({INTERVAL: "off"})


INLINE = CHECKPOINTING + "data-inline-threshold"


@pytest.mark.parametrize(
    ("given", "size", "written_as"),
    [("20 kb", 20480, "20 kb"), ("1MB", 1 << 20, "1 mb"), ("0", 0, "0 b"), (1500, 1500, "1500 b")],
)
def test_a_size_is_read_as_flink_writes_it(given: object, size: int, written_as: str) -> None:
    config = resolve(file=None, job_options={INLINE: given})
    assert config.settings.execution_checkpointing_data_inline_threshold == size
    assert config.text(INLINE) == written_as
    assert resolve(file=None, overrides={INLINE: written_as}).settings == config.settings


@pytest.mark.parametrize("given", ["2 mb", "1 gb", "-1", "1.5 kb", "much", True])
def test_what_is_no_size_is_refused(given: object) -> None:
    assert "between 0 b and 1 mb" in refused(BadValueError, job_options={INLINE: given})


def test_some_settings_can_be_changed_on_a_running_job() -> None:
    before = resolve(file=None, overrides={TIMEOUT: "90 s"})
    texts = {INTERVAL: "off", CHECKPOINTING + "timeout": "1 min", CHECKPOINTING + "min-pause": "2s"}
    assert set(texts) == set(RUNTIME_KEYS)
    after = before.changed(texts)
    assert after.settings.execution_checkpointing_interval is None
    assert after.settings.execution_checkpointing_min_pause == timedelta(seconds=2)
    assert after.settings.heartbeat_timeout == timedelta(seconds=90)
    assert (after.origins[INTERVAL], after.origins[TIMEOUT]) == (Layer.REQUEST, Layer.COMMAND_LINE)
    assert Config.from_wire(json.loads(json.dumps(after.to_wire()))) == after
    assert before.text(INTERVAL) == "10 s"


@pytest.mark.parametrize(
    ("kind", "key", "value", "words"),
    [
        (BadValueError, MODE, "at_least_once", "on a running job only execution.checkpointing.interval, "),
        (BadValueError, "state.backend", "rocksdb", "on a running job only"),
        (BadValueError, INTERVAL, "soon", "a whole number with a unit"),
        (UnknownKeyError, CHECKPOINTING + "intervall", "1 s", f"did you mean '{INTERVAL}'"),
        (UnknownKeyError, "spark.x", "1", "'weir config' lists all settings"),
    ],
)
def test_what_cannot_be_changed_on_a_running_job_is_refused(
    kind: type[Exception], key: str, value: str, words: str
) -> None:
    with pytest.raises(kind) as caught:
        changed(Settings(), {key: value})
    assert words in str(caught.value) and "from the request" in str(caught.value)
