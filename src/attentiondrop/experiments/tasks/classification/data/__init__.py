"""The images of the experiments: `load_data(ImageSettings(...))`.

Each source has its own file. Importing the package loads no framework.
"""

from .image_settings import ImageSettings
from .reading import load_data

__all__ = ["ImageSettings", "load_data"]
