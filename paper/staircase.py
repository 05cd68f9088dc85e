"""The batch time of most scripts: the paper's staircase of CodeLlama-34B on one A100 (Section 2.3)."""

import penstock as ps

STAIRS = ps.hardware("codellama-34b-a100-tp1").batch_time
