"""The data of the experiments: `load_data(ImageSettings(...))`.

One file a source. Importing the package loads no framework.
"""

from .image_settings import ImageSettings
from .reading import load_data

__all__ = ["ImageSettings", "load_data"]
