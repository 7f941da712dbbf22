"""The data of the experiments: `load_data(DataSettings(...))`.

One file a source. Importing the package loads no framework.
"""

from .loading import load_data
from .settings import DataSettings

__all__ = ["DataSettings", "load_data"]
