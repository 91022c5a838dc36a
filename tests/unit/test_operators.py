"""What a query's files tell of its stateful operators."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.kept_job import CONF, KeptJob, write
from weir.ids import BatchId
from weir.spark.closure import GoneError
from weir.spark.state_schema import operators, read_schemas

OF_SPARK = zlib.decompress(
    base64.b64decode(
        "eNrFkk1LxDAQhtNVvPoXlsFjLyIe7HXxtCLC+onIEtNZKZuPkkzXLaH/3ZRKi4gYZT/mlsnknZfnDRutzhhjh+z4xJr3iak0oZ1LR6yt"
        "hD14oLpEyMCRrQRBCosCZe4ge/aguWqvlqE7TBX6LZx1JSV/laEX3mEKConnnDhkvmlemk/5pxh50boaVkgTuSBh5x6WWM+IE15qYXK0"
        "t53GtbmxuCjW06+3sxIFdE+P/DhUww6E3hGLuygWe+Owsz8RxWG9Lw4jVXY+k4soDFj3TreE7ZeBtNeuHNrpH/2ozRvqg76PMrD6V9JX"
        "PyU95Cy4/pZ1K64mRrp+DLLTTvFxW7g+AN3YweU="
    )
)
"""What Spark 4.3 wrote for transformWithState with a value, a list and a map."""


def columns(schema: dict[str, Any] | None) -> list[str]:
    return [field["name"] for field in schema["fields"]] if schema else []


def test_the_schema_of_every_state_variable_is_read_as_spark_wrote_it() -> None:
    found = {one.family: one for one in read_schemas(OF_SPARK)}
    assert list(found) == ["$rowCounter_lst", "cnt", "lst", "mp"]
    assert (columns(found["cnt"].key), columns(found["cnt"].value)) == (["k"], ["c"])
    assert found["cnt"].encoder == {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
    assert (columns(found["mp"].key), columns(found["mp"].user_key)) == (["key", "userKey"], ["mk"])
    assert found["mp"].encoder["numColsPrefixKey"] == 1 and found["cnt"].user_key is None


def test_a_schema_file_that_is_cut_short_or_newer_is_told() -> None:
    with pytest.raises(ValueError, match="ends too early"):
        read_schemas(OF_SPARK[:200])
    with pytest.raises(ValueError, match="version v9"):
        read_schemas(b"\0\2v9")


def test_an_operator_is_known_by_its_metadata_its_stores_and_the_files_of_its_batch(tmp_path: Path) -> None:
    job = KeptJob(tmp_path)
    job.batch(0)
    root = job.root() / "queries/counts"
    names = ("left-keyToNumValues", "left-keyWithIndexToValue")
    stores = [{"storeName": name, "numColsPrefixKey": 1, "numPartitions": 9} for name in names]
    info = {"operatorId": 3, "operatorName": "symmetricHashJoin"}
    metadata = {"operatorInfo": info, "stateStoreInfo": stores}
    write(root / "state/3/_metadata/metadata", "v1\n" + json.dumps(metadata))
    conf = {**CONF, "spark.sql.shuffle.partitions": "2"}
    write(root / "offsets/0", "\n".join(["v1", json.dumps({"conf": conf}), "-"]))
    for partition in (0, 1, 2):
        for name in names:
            write(root / f"state/3/{partition}/{name}/1.delta", "12345")
    later = {"stateSchemaFilePaths": [f"file:/gone/state/4/_stateSchema/default/{n}_ab" for n in (0, 1)]}
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1, **later}]
    properties = json.dumps({"timeMode": "NoTime"})
    info = {"operatorId": 4, "operatorName": "transformWithStateInPySparkExec"}
    metadata = {"operatorInfo": info, "stateStoreInfo": stores, "operatorPropertiesJson": properties}
    write(root / "state/4/_metadata/v2/0", "v2\n" + json.dumps(metadata))
    for number, content in ((0, b"\0\2v3\0\0\0\0"), (1, OF_SPARK)):
        file = write(root / f"state/4/_stateSchema/default/{number}_ab", "")
        file.write_bytes(content)
    write(root / "state/4/0/1.delta", "1")
    first, join, processor = operators(root, BatchId(0))
    assert (first.id, first.kind, first.stores[0].key_schema) == (0, "stateStoreSave", None)
    assert (join.id, join.partitions, [store.name for store in join.stores]) == (3, 2, list(names))
    assert join.stores[0].prefix_columns == 1 and join.rows is None
    size = (root / "state/3/_metadata/metadata").stat().st_size
    assert join.bytes == size + 4 * 5
    assert processor.properties == {"timeMode": "NoTime"}
    assert [family.name for family in processor.stores[0].families][1:] == ["cnt", "lst", "mp"]
    with pytest.raises(GoneError):
        operators(root, BatchId(7))
