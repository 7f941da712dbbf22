"""The data of the experiments: `load_data(DataSettings(...))`.

One file a source. Importing the package loads no framework.
"""

from .image_settings import DataSettings
from .reading import load_data

__all__ = ["DataSettings", "load_data"]
