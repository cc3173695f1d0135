"""What classification and captioning share: the training loop, run folders, sweeps, reports and options.

session.py      train_task: starts processes, opens a run's folder, and runs the loop
engine.py       the training loop of any task; nonfinite.py names the layer where one diverged
runs.py         the folder of a run: configuration, identity, lock; record_files.py: its records and their checksums
checkpoints.py  weights, optimizer and position, written atomically; recording.py: records and TensorBoard's events
hardware.py     devices and processes; environment.py: versions, commit and machine; seeds.py: keyed random bits
files.py        files that are read with checks and replaced atomically; stopping.py: Ctrl-C and SIGTERM
options.py      a command's options from dataclasses; checks.py: those of values; errors.py: InputError
progress.py     bars and lines on stderr
sweep/          many runs at once, on this machine or on a Ray cluster
report/         pages on runs: content, statistics, charts, HTML and Markdown
"""
