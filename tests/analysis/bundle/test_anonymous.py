"""Names of hosts, users and networks in texts as jobs and manifests contain them."""

from pathlib import Path

import pytest

from dpscope.analysis.bundle.anonymous import Anonymizer


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Anonymizer:
    monkeypatch.setattr("socket.gethostname", lambda: "login1.hpc.example.org")
    monkeypatch.setattr("getpass.getuser", lambda: "mmuster")
    return Anonymizer(
        ["n0417.hpc.example.org", "n0418", "gpu"], [Path("/scratch/mmuster/runs/big")]
    )


def test_the_same_host_is_the_same_number_in_every_form(names: Anonymizer) -> None:
    text = "n0417: rank 3 waits for n0418; n0417.hpc.example.org:29500 refused, requested by login1"
    assert (
        names.text(text) == "host0: rank 3 waits for host1; host0:29500 refused, requested by host3"
    )
    # A word that begins like a host, or goes on behind it, is another word.
    assert names.text("n04178 n0417-ib xn0418") == "n04178 n0417-ib xn0418"


def test_the_names_of_trace_files_tell_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's tensorboard_trace_handler names them, by host and process, and as people do."""
    monkeypatch.setattr("socket.gethostname", lambda: "atlas")
    names = Anonymizer(["n0417.hpc.example.org"])
    text = (
        "n0417_4711.1690000000.pt.trace.json.gz, trace_n0417_rank3.json, atlas_12.345.pt.trace.json"
    )
    assert (
        names.text(text)
        == "host0_4711.1690000000.pt.trace.json.gz, trace_host0_rank3.json, host1_12.345.pt.trace.json"
    )
    assert (
        names.text("atlas_size, n04170_1.json, atlas_2d") == "atlas_size, n04170_1.json, atlas_2d"
    )


def test_paths_users_and_addresses(names: Anonymizer) -> None:
    assert names.text("/scratch/mmuster/runs/big/cells/a") == "folder0/cells/a"
    assert names.text("/home/erika/venv/bin and /home/erika/data, /home/max") == (
        "/home/user1/venv/bin and /home/user1/data, /home/user2"
    )
    assert names.text("/gpfs/mmuster/x") == "/gpfs/user0/x"
    assert names.text("10.0.4.17:29500 to 10.0.4.18, 10.0.4.17 and 127.0.0.1") == (
        "address0:29500 to address1, address0 and 127.0.0.1"
    )
    assert names.text("fe80::5054:ff:fe12:3456 says") == "address2 says"


def test_a_host_with_a_usual_name_is_replaced_only_in_fields_for_hosts(names: Anonymizer) -> None:
    record = {
        "hostname": "gpu",
        "device_type": "gpu",
        "settings": {"n0418": ["on n0418", 3, None, True]},
    }
    assert names.value(record) == {
        "hostname": "host2",
        "device_type": "gpu",
        "settings": {"n0418": ["on host1", 3, None, True]},
    }


def test_a_user_without_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_user() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", no_user)
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert Anonymizer([]).text("localhost in /data/x") == "localhost in /data/x"


def test_other_words_stay(names: Anonymizer) -> None:
    text = (
        "torch 2.11.0, NCCL 2.30.3, at::native::add<float>, 00000000:07:00.0, 12:30:59, root, 1.5.2"
    )
    assert names.text(text) == text
