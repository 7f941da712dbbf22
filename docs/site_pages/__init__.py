"""Parts of the site that are written from the code during the build. `docs/conf.py` uses them."""
