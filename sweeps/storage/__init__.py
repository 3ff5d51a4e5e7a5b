"""The storage of sweeps: folders by `pathlib.Path`, object stores (`s3://`, `gs://`) by `ObjectPath`."""
