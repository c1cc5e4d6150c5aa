"""A module whose import takes a while, as torch's does."""

import time

time.sleep(1.5)
