"""The version of weft, in the one place that the build and the reports read."""

VERSION = "0.1.0"
