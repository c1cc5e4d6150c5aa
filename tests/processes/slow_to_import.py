"""Takes a while to import, as torch does."""

import time

time.sleep(1.5)
