//! Our types against the installed header's: a C compiler prints every size, offset and constant that we mirror.
//!
//! Needs a C compiler and `<infiniband/verbs.h>` (package libibverbs-dev); without them the test says so and skips,
//! except when `CI=true`, where it fails. Structures that grow from version to version may be larger in the header than
//! here: what we know of them must lie where we think it does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

use longhaul_verbs_abi::{self as abi, Field, Layout};

/// Grow at their end; the library gets their size from the caller, or allocates them itself.
const GROWING: &[&str] = &["ibv_device_attr_ex", "ibv_port_attr", "ibv_qp_ex", "ibv_qp_init_attr_ex"];

/// Grows at its beginning. Everything in it is counted from its last field.
const GROWING_UPWARDS: &str = "verbs_context";

/// Fields inside structures and unions that have no name in C.
const NESTED: &[(&str, &str, usize)] = &[
    ("struct ibv_send_wr", "invalidate_rkey", offset_of!(abi::ibv_send_wr, imm_data)),
    ("struct ibv_send_wr", "wr.rdma.remote_addr", SEND_WR + offset_of!(abi::ibv_send_wr_rdma, remote_addr)),
    ("struct ibv_send_wr", "wr.rdma.rkey", SEND_WR + offset_of!(abi::ibv_send_wr_rdma, rkey)),
    ("struct ibv_send_wr", "wr.atomic.remote_addr", SEND_WR + offset_of!(abi::ibv_send_wr_atomic, remote_addr)),
    ("struct ibv_send_wr", "wr.atomic.compare_add", SEND_WR + offset_of!(abi::ibv_send_wr_atomic, compare_add)),
    ("struct ibv_send_wr", "wr.atomic.swap", SEND_WR + offset_of!(abi::ibv_send_wr_atomic, swap)),
    ("struct ibv_send_wr", "wr.atomic.rkey", SEND_WR + offset_of!(abi::ibv_send_wr_atomic, rkey)),
    ("struct ibv_send_wr", "wr.ud.ah", SEND_WR + offset_of!(abi::ibv_send_wr_ud, ah)),
    ("struct ibv_send_wr", "wr.ud.remote_qpn", SEND_WR + offset_of!(abi::ibv_send_wr_ud, remote_qpn)),
    ("struct ibv_send_wr", "wr.ud.remote_qkey", SEND_WR + offset_of!(abi::ibv_send_wr_ud, remote_qkey)),
    ("struct ibv_send_wr", "qp_type.xrc.remote_srqn", offset_of!(abi::ibv_send_wr, qp_type)),
    ("struct ibv_send_wr", "bind_mw.mw", BIND_MW + offset_of!(abi::ibv_send_wr_bind_mw, mw)),
    ("struct ibv_send_wr", "bind_mw.rkey", BIND_MW + offset_of!(abi::ibv_send_wr_bind_mw, rkey)),
    ("struct ibv_send_wr", "bind_mw.bind_info", BIND_MW + offset_of!(abi::ibv_send_wr_bind_mw, bind_info)),
    ("struct ibv_wc", "invalidated_rkey", offset_of!(abi::ibv_wc, imm_data)),
    ("struct ibv_async_event", "element.port_num", offset_of!(abi::ibv_async_event, element)),
    ("struct ibv_async_event", "element.qp", offset_of!(abi::ibv_async_event, element)),
    (
        "struct ibv_odp_caps",
        "per_transport_caps.ud_odp_caps",
        8 + offset_of!(abi::ibv_odp_caps_per_transport_caps, ud_odp_caps),
    ),
    ("struct ibv_global_route", "dgid.raw", offset_of!(abi::ibv_global_route, dgid)),
];
const SEND_WR: usize = offset_of!(abi::ibv_send_wr, wr);
const BIND_MW: usize = offset_of!(abi::ibv_send_wr, bind_mw);

/// `type` in C is `r#type` here.
fn c_name(field: &Field) -> &'static str {
    field.name.trim_start_matches("r#")
}

/// What we have, a line for each number, as the C program prints them.
fn ours() -> BTreeMap<String, i64> {
    let mut numbers = BTreeMap::new();
    let mut put = |key: String, value: usize| {
        let value = i64::try_from(value).expect("layouts are small");
        assert!(numbers.insert(key.clone(), value).is_none(), "{key} stands twice in the tables");
    };
    for layout in abi::layouts() {
        put(format!("sizeof {}", layout.name), layout.size);
        for field in layout.fields {
            put(format!("offsetof {} {}", layout.name, c_name(field)), origin(layout).abs_diff(field.offset));
            put(format!("sizeof {} {}", layout.name, c_name(field)), field.size);
        }
    }
    for (name, path, offset) in NESTED {
        put(format!("offsetof {name} {path}"), *offset);
    }
    put("sizeof union ibv_gid".into(), size_of::<abi::ibv_gid>());
    put("alignof union ibv_gid".into(), align_of::<abi::ibv_gid>());
    for (name, value) in abi::CONSTANTS {
        assert!(numbers.insert(format!("constant {name}"), *value).is_none(), "{name} stands twice");
    }
    numbers
}

/// Where offsets are counted from.
fn origin(layout: &Layout) -> usize {
    match layout.name {
        GROWING_UPWARDS => layout.fields.last().expect("it has fields").offset,
        _ => 0,
    }
}

/// A C program that prints the same from the header.
fn c_program() -> String {
    let mut program = String::from(
        "#include <infiniband/verbs.h>\n#include <stdio.h>\n#include <stddef.h>\n#include <stdalign.h>\n\
         #define NUMBER(key, value) printf(\"%s=%lld\\n\", key, (long long)(value))\n\
         int main(void) {\n",
    );
    let mut line =
        |text: std::fmt::Arguments<'_>| writeln!(program, "{text}").expect("strings take what they are given");
    for layout in abi::layouts() {
        let name = layout.name;
        line(format_args!("NUMBER(\"sizeof {name}\", sizeof(struct {name}));"));
        for field in layout.fields {
            let field = c_name(field);
            let offset = match name {
                GROWING_UPWARDS => format!("offsetof(struct {name}, context) - offsetof(struct {name}, {field})"),
                _ => format!("offsetof(struct {name}, {field})"),
            };
            line(format_args!("NUMBER(\"offsetof {name} {field}\", {offset});"));
            line(format_args!("NUMBER(\"sizeof {name} {field}\", sizeof(((struct {name} *)0)->{field}));"));
        }
    }
    for (name, path, _) in NESTED {
        line(format_args!("NUMBER(\"offsetof {name} {path}\", offsetof({name}, {path}));"));
    }
    line(format_args!("NUMBER(\"sizeof union ibv_gid\", sizeof(union ibv_gid));"));
    line(format_args!("NUMBER(\"alignof union ibv_gid\", alignof(union ibv_gid));"));
    for (name, _) in abi::CONSTANTS {
        line(format_args!("NUMBER(\"constant {name}\", {name});"));
    }
    line(format_args!("return 0;\n}}"));
    program
}

/// Whether a C compiler finds the header.
fn has_header() -> bool {
    let compiler = Command::new("cc")
        .args(["-E", "-include", "infiniband/verbs.h", "-x", "c", "/dev/null"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    compiler.is_ok_and(|status| status.success())
}

/// What the header has.
fn theirs() -> BTreeMap<String, i64> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("layout.c");
    let program = folder.join("layout");
    std::fs::write(&source, c_program()).expect("the temporary folder can be written");
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output().expect("cc was there before");
    assert!(
        compiled.status.success(),
        "the header lacks something that we mirror:\n{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let printed = Command::new(&program).output().expect("what was just compiled runs");
    assert!(printed.status.success());
    let text = String::from_utf8(printed.stdout).expect("it prints ASCII");
    let number = |line: &str| {
        let (key, value) = line.split_once('=').expect("key=value");
        (key.to_owned(), value.parse().expect("a number"))
    };
    text.lines().map(number).collect()
}

/// What does not fit, a line each.
fn differences(ours: &BTreeMap<String, i64>, theirs: &BTreeMap<String, i64>) -> Vec<String> {
    let may_be_larger = |key: &str| {
        let mut growing = GROWING.iter().chain([&GROWING_UPWARDS]);
        growing.any(|name| key.strip_prefix("sizeof ") == Some(*name))
    };
    let fits = |key: &str, ours: i64, theirs: i64| ours == theirs || may_be_larger(key) && ours < theirs;
    let difference = |(key, value): (&String, &i64)| match theirs.get(key) {
        Some(theirs) if fits(key, *value, *theirs) => None,
        Some(theirs) => Some(format!("{key}: {value} here, {theirs} in the header")),
        None => Some(format!("{key}: not printed by the C program")),
    };
    ours.iter().filter_map(difference).collect()
}

#[test]
fn types_and_constants_are_those_of_the_installed_header() {
    if !has_header() {
        let message = "cc does not find <infiniband/verbs.h>; install a C compiler and libibverbs-dev";
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{message}");
        eprintln!("SKIPPED: {message}");
        return;
    }
    let ours = ours();
    let differences = differences(&ours, &theirs());
    assert!(
        differences.is_empty(),
        "{} of {} numbers differ:\n{}",
        differences.len(),
        ours.len(),
        differences.join("\n")
    );
    assert!(ours.len() > 700, "only {} numbers compared", ours.len());
}

#[test]
fn every_difference_shows_except_growth() {
    let ours = BTreeMap::from([
        ("sizeof ibv_port_attr".to_owned(), 52),
        ("offsetof ibv_port_attr lid".to_owned(), 34),
        ("constant IBV_QPT_RC".to_owned(), 2),
    ]);
    assert!(differences(&ours, &ours).is_empty());
    let changed = |key: &str, value: i64| {
        let mut theirs = ours.clone();
        theirs.insert(key.to_owned(), value);
        differences(&ours, &theirs)
    };
    assert!(changed("sizeof ibv_port_attr", 56).is_empty(), "newer headers have more of it");
    assert_eq!(changed("sizeof ibv_port_attr", 48), ["sizeof ibv_port_attr: 52 here, 48 in the header"]);
    assert_eq!(changed("offsetof ibv_port_attr lid", 36), ["offsetof ibv_port_attr lid: 34 here, 36 in the header"]);
    assert_eq!(changed("constant IBV_QPT_RC", 3), ["constant IBV_QPT_RC: 2 here, 3 in the header"]);
    assert_eq!(differences(&ours, &BTreeMap::new()).len(), 3, "what the program does not print is a difference");
}
