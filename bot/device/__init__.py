"""The trusted process of a lane: inputs, reference, comparison. Nobody imports it."""
