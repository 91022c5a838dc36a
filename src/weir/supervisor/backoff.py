"""From the settings to the restart strategy that they name."""

from __future__ import annotations

from weir.config import RestartStrategyType, Settings
from weir.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy


def strategy(settings: Settings) -> RestartStrategy:
    """A fresh strategy with no failures behind it."""
    kind = settings.restart_strategy_type
    if kind is RestartStrategyType.FIXED_DELAY:
        return FixedDelay(
            settings.restart_strategy_fixed_delay_attempts,
            settings.restart_strategy_fixed_delay_delay.total_seconds(),
        )
    if kind is RestartStrategyType.FAILURE_RATE:
        return FailureRate(
            settings.restart_strategy_failure_rate_max_failures_per_interval,
            settings.restart_strategy_failure_rate_failure_rate_interval.total_seconds(),
            settings.restart_strategy_failure_rate_delay.total_seconds(),
        )
    if kind is RestartStrategyType.EXPONENTIAL_DELAY:
        return ExponentialDelay(
            settings.restart_strategy_exponential_delay_initial_backoff.total_seconds(),
            settings.restart_strategy_exponential_delay_max_backoff.total_seconds(),
            settings.restart_strategy_exponential_delay_backoff_multiplier,
            settings.restart_strategy_exponential_delay_jitter_factor,
            settings.restart_strategy_exponential_delay_reset_backoff_threshold.total_seconds(),
            settings.restart_strategy_exponential_delay_attempts_before_reset_backoff,
        )
    return NoRestart()
