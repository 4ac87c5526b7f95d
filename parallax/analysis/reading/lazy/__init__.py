"""Updates of whole tables whose untouched rows have a gradient of zero, made updates by row (`lazy_updates`)."""
