"""Sweeps: many settings of one experiment, each with several seeds, and the best one by validation rows. A tournament
ranks strategies in the same way."""
