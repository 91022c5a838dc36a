"""Sources: where a query reads from. One system per file; any frame of Spark's will do as well.

A source whose peer can't be asked again keeps the contract in `contract.py`.
"""

from weir.sources.contract import Place, ReadingQuery, Receiver, ReceivingSource, Source
from weir.sources.kafka import kafka
from weir.sources.native import files, rate
from weir.sources.socket import socket

__all__ = [
    "Place",
    "ReadingQuery",
    "Receiver",
    "ReceivingSource",
    "Source",
    "files",
    "kafka",
    "rate",
    "socket",
]
