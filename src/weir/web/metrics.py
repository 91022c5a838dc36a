"""The figures of jobs in the form of Prometheus; `monitor/figures.py` has them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from weir.errors import WeirError
from weir.ids import job_name
from weir.monitor.figures import BUILD, HISTOGRAMS, JOB, MEANINGS, Figure, figures
from weir.monitor.job import job_names
from weir.web.site import Site, versions


def exposed(site: Site) -> bytes:
    """All of it in Prometheus' form: of the job whose supervisor serves, or of every job."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(site))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, site: Site) -> None:
        self._site = site

    def collect(self) -> Iterable[Metric]:
        samples: dict[str, list[Figure]] = {name: [] for name in MEANINGS}
        samples[BUILD].append(Figure(BUILD, 1.0, versions()))
        for job in [job_name(self._site.job)] if self._site.job else job_names(self._site.dir):
            try:
                for one in figures(self._site.dir, job, self._site.clock):
                    labelled = Figure(one.name, one.value, {JOB: job, **one.labels})
                    figure, _, end = one.name.rpartition("_")  # a histogram has several samples
                    part = figure in HISTOGRAMS and end in ("bucket", "sum", "count")
                    samples[figure if part else one.name].append(labelled)
            except WeirError:
                continue  # one that can't be read is left out, and not all of them
        return [_family(name, values) for name, values in samples.items() if values]


def _family(name: str, values: list[Figure]) -> Metric:
    if name in HISTOGRAMS:
        histogram = HistogramMetricFamily(name, MEANINGS[name])
        for one in values:
            histogram.add_sample(one.name, one.labels, one.value)
        return histogram
    labels = list(values[0].labels)
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, MEANINGS[name], labels=labels)
    for one in values:
        family.add_metric([one.labels[label] for label in labels], one.value)
    return family
