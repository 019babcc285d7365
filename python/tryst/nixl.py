"""NIXL's back end "TRYST", which stands in this package (docs/KV.md).

    export NIXL_PLUGIN_DIR=$(python -m tryst.nixl)

and an agent's create_backend("TRYST") finds it.
"""
import os

PLUGINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugins")


def main():
    if not os.path.exists(os.path.join(PLUGINS, "libplugin_TRYST.so")):
        raise SystemExit("this wheel has no back end of NIXL, as none is made for its processor: ./run plugin nixl makes one")
    print(PLUGINS)


if __name__ == "__main__":
    main()
