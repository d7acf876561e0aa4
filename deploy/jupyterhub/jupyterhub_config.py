"""JupyterHub for ten to thirty learners on one machine. README.md beside this file says how.

Each learner is a user of the machine and logs in with that password. A learner's server is a unit
of systemd, which holds it to its memory and its share of the processors. Everything listens on
127.0.0.1: what lets others in is a web server in front of it, which speaks TLS (`Caddyfile`).

The settings that differ from class to class are variables of the environment, with their defaults
here; `course-hub.service` is the place to set them.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COURSE = HERE.parents[1]
PROGRAMS = Path(sys.prefix) / "bin"  # of the environment that runs the hub: the course's own


def setting(name: str, default: str) -> str:
    return os.environ.get(name) or default


PORT = int(setting("COURSE_HUB_PORT", "8000"))
STATE = Path(setting("COURSE_HUB_STATE", "/srv/course-hub"))  # who is logged in; keep it private
CACHE = Path(setting("COURSE_CACHE", "/srv/course-cache"))  # the model, converted once for all
EXCHANGE = Path(setting("COURSE_EXCHANGE", "/srv/nbgrader/exchange"))
LEARNERS = int(setting("COURSE_LEARNERS", "30"))  # servers at one time; README.md: memory
MEMORY = setting("COURSE_MEMORY", "4G")  # of one learner's server and kernels together
PROCESSORS = float(setting("COURSE_PROCESSORS", "2"))
IDLE_SERVER = int(setting("COURSE_IDLE_SERVER", "3600"))  # seconds without anybody there
IDLE_KERNEL = int(setting("COURSE_IDLE_KERNEL", "1800"))  # seconds after its tab was closed
SPAWNER = setting("COURSE_SPAWNER", "systemd")

for name, folder in (("COURSE_CACHE", CACHE), ("COURSE_EXCHANGE", EXCHANGE)):
    if not folder.is_dir():
        sys.exit(f"{name}: there is no folder {folder}. README.md beside {__file__} makes it.")
if SPAWNER == "systemd" and not Path("/run/systemd/system").is_dir():
    sys.exit(
        "This machine does not run systemd, which holds learners to their memory. For a rehearsal "
        "among people who trust each other, without any limit: COURSE_SPAWNER=local."
    )

c = get_config()  # noqa: F821  (JupyterHub provides it)

# --- Where it listens: nowhere but here ---------------------------------------------------------
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{PORT + 1}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{PORT + 2}"
c.ConfigurableHTTPProxy.command = [setting("COURSE_PROXY", "configurable-http-proxy")]
c.Spawner.ip = "127.0.0.1"

# --- What it keeps ------------------------------------------------------------------------------
STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
c.JupyterHub.db_url = f"sqlite:///{STATE / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")

# --- Who comes in: users of this machine, by group ----------------------------------------------
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {"learners", "instructors"}
c.PAMAuthenticator.admin_groups = {"instructors"}  # they may start and stop servers

# --- A learner's server -------------------------------------------------------------------------
c.JupyterHub.spawner_class = {
    "systemd": "systemdspawner.SystemdSpawner",
    "local": "jupyterhub.spawner.LocalProcessSpawner",
}[SPAWNER]
c.Spawner.cmd = [sys.executable, str(COURSE / "deploy" / "learner_server.py")]
c.Spawner.args = [
    f"--MappingKernelManager.cull_idle_timeout={IDLE_KERNEL}",
    "--MappingKernelManager.cull_interval=60",
]
c.Spawner.default_url = "/lab/tree/course/notebooks/00_start_here.ipynb"
c.Spawner.start_timeout = 180  # thirty begin at the same minute
c.Spawner.http_timeout = 120
c.Spawner.mem_limit = MEMORY
c.Spawner.cpu_limit = PROCESSORS
c.SystemdSpawner.isolate_tmp = True
c.SystemdSpawner.isolate_devices = True
c.SystemdSpawner.disable_user_sudo = True
# Without this, memory beyond the limit goes to swap, and the machine crawls for everybody.
c.SystemdSpawner.unit_extra_properties = {"MemorySwapMax": "0", "TasksMax": "1024"}
c.JupyterHub.active_server_limit = LEARNERS
c.JupyterHub.concurrent_spawn_limit = 10


def settings_of_jupyter(spawner: object) -> str:
    """Everybody has the exchange; a learner is not shown what is for instructors."""
    folders = [HERE / "jupyter", COURSE / "tools" / "jupyter"]
    if not spawner.user.admin:  # type: ignore[attr-defined]
        folders.insert(0, HERE / "jupyter" / "learner")
    return ":".join(map(str, folders))


c.Spawner.environment = {
    # Grading shuts code in by a program that Debian keeps among the administrator's.
    "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "JUPYTER_CONFIG_PATH": settings_of_jupyter,
    "JUPYTER_PREFER_ENV_PATH": "1",
    "COURSE_CACHE": str(CACHE),
    "COURSE_EXCHANGE": str(EXCHANGE),
    # What Part II makes belongs to the learner: the course's own folder is not writable.
    "COURSE_ARTIFACTS": lambda spawner: os.path.expanduser(
        f"~{spawner.user.name}/course/artifacts"
    ),
    # As in the Makefile: threads that wait must not spin, or all slow each other down.
    "OMP_NUM_THREADS": str(max(1, int(PROCESSORS))),
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
}

# --- What nobody uses is ended ------------------------------------------------------------------
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={IDLE_SERVER}"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "services": ["idle-culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    }
]
