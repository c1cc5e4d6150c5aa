"""Plots of scaling laws: functions that draw given data on given Axes and fit nothing."""
