//! The handshake's messages as bytes.
//!
//! All of them are `"LHC" · version 1` and fields (see `fields`). Each begins with the field that says which message it
//! is.

use std::net::{IpAddr, SocketAddr};

use longhaul_verbs::{Gid, Mtu};

use crate::fields::{self, Field, FieldError, FieldWriter, Named, Padding, address_bytes};

/// The version that this code writes and reads.
pub(crate) const VERSION: u8 = 1;
const MAGIC: &str = "LHC";
/// More than any of them has: the info of as many internal queue pairs as there may be.
pub(crate) const BYTES_MAX: usize = 16 << 10;
const SCHEME_BYTES_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 1024;
const PATHS_MAX: usize = 64;

mod tag {
    pub(super) const KIND: u16 = 1;
    pub(super) const CAPABILITIES: u16 = 2;
    pub(super) const MTU: u16 = 3;
    pub(super) const PATH: u16 = 4;
    pub(super) const SCHEME: u16 = 5;
    pub(super) const CHUNK_BYTES: u16 = 6;
    pub(super) const MESSAGE_BYTES_MAX: u16 = 7;
    pub(super) const CHANNELS: u16 = 8;
    pub(super) const TOKEN: u16 = 9;
    pub(super) const LOCAL_ADDRESS: u16 = 10;
    pub(super) const PEER_ADDRESS: u16 = 11;
    pub(super) const QUEUE_PAIR: u16 = 12;
    pub(super) const REFUSAL: u16 = 13;
    pub(super) const TEXT: u16 = 14;
    pub(super) const HAS_HEARD: u16 = 15;
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const ANSWER: u8 = 2;
    pub(super) const INFO: u8 = 3;
    pub(super) const REFUSED: u8 = 4;
    pub(super) const PATH_REPORT: u8 = 5;
}

mod refusal {
    pub(super) const OTHER_SCHEME: u8 = 1;
    pub(super) const OTHER_CHUNKS: u8 = 2;
    pub(super) const WRONG_TOKEN: u8 = 3;
    pub(super) const NO_TOKEN: u8 = 4;
    pub(super) const OTHER: u8 = 255;
}

/// Where a device can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathInfo {
    pub(crate) gid: Gid,
    pub(crate) udp_port: u16,
}

impl PathInfo {
    pub(crate) fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.gid.to_ip(), self.udp_port)
    }
}

/// The first message: what the connecting end can, wants and is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) capabilities: u64,
    pub(crate) mtu: Mtu,
    pub(crate) paths: Vec<PathInfo>,
    pub(crate) scheme: String,
    pub(crate) chunk_bytes: Option<u32>,
    pub(crate) message_bytes_max: u64,
    pub(crate) channels: u16,
    pub(crate) token: Option<[u8; 16]>,
    pub(crate) addresses: Option<(IpAddr, IpAddr)>,
}

/// The second: what is agreed, and how to reach the accepting end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) capabilities: u64,
    pub(crate) mtu: Mtu,
    pub(crate) paths: Vec<PathInfo>,
    pub(crate) scheme: String,
    pub(crate) chunk_bytes: u32,
    pub(crate) message_bytes_max: u64,
    pub(crate) channels: u16,
    pub(crate) queue_pair: Vec<u8>,
}

/// Or a refusal in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OtherScheme { theirs: String },
    OtherChunks { theirs: u32 },
    WrongToken,
    NoToken,
    Other(String),
}

/// What comes back on a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Answer(Answer),
    Refused(Refusal),
}

/// The third: how to reach the connecting end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) paths: Vec<PathInfo>,
    pub(crate) queue_pair: Vec<u8>,
}

/// What an end says when it gives up because UDP packets do not pass: whether any has come from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathReport {
    pub(crate) has_heard: bool,
}

impl Hello {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = begin(kind::HELLO);
        writer.push(tag::CAPABILITIES, &self.capabilities.to_be_bytes());
        writer.push(tag::MTU, &self.mtu.byte_count().to_be_bytes());
        push_paths(&mut writer, &self.paths);
        writer.push(tag::SCHEME, cut(&self.scheme, SCHEME_BYTES_MAX));
        if let Some(chunk_bytes) = self.chunk_bytes {
            writer.push(tag::CHUNK_BYTES, &chunk_bytes.to_be_bytes());
        }
        writer.push(tag::MESSAGE_BYTES_MAX, &self.message_bytes_max.to_be_bytes());
        writer.push(tag::CHANNELS, &self.channels.to_be_bytes());
        if let Some(token) = &self.token {
            writer.push(tag::TOKEN, token);
        }
        if let Some((local, peer)) = self.addresses {
            writer.push(tag::LOCAL_ADDRESS, &address_bytes(local));
            writer.push(tag::PEER_ADDRESS, &address_bytes(peer));
        }
        writer.finish()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FieldError> {
        let fields = read(bytes, &[kind::HELLO])?.1;
        let address = |tag, name| fields::find(&fields, tag, name)?.map(|field| field.address()).transpose();
        let local = address(tag::LOCAL_ADDRESS, "local address")?;
        let peer = address(tag::PEER_ADDRESS, "peer address")?;
        Ok(Hello {
            capabilities: fields::need(&fields, tag::CAPABILITIES, "capabilities")?.u64()?,
            mtu: read_mtu(&fields)?,
            paths: read_paths(&fields)?,
            scheme: fields::need(&fields, tag::SCHEME, "scheme")?.text(SCHEME_BYTES_MAX)?.to_owned(),
            chunk_bytes: fields::find(&fields, tag::CHUNK_BYTES, "chunk bytes")?.map(chunk_bytes).transpose()?,
            message_bytes_max: read_message_bytes_max(&fields)?,
            channels: read_channels(&fields)?,
            token: fields::find(&fields, tag::TOKEN, "token")?.map(|field| field.array()).transpose()?,
            addresses: local.zip(peer),
        })
    }
}

impl Reply {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Reply::Answer(answer) => {
                let mut writer = begin(kind::ANSWER);
                writer.push(tag::CAPABILITIES, &answer.capabilities.to_be_bytes());
                writer.push(tag::MTU, &answer.mtu.byte_count().to_be_bytes());
                push_paths(&mut writer, &answer.paths);
                writer.push(tag::SCHEME, cut(&answer.scheme, SCHEME_BYTES_MAX));
                writer.push(tag::CHUNK_BYTES, &answer.chunk_bytes.to_be_bytes());
                writer.push(tag::MESSAGE_BYTES_MAX, &answer.message_bytes_max.to_be_bytes());
                writer.push(tag::CHANNELS, &answer.channels.to_be_bytes());
                writer.push(tag::QUEUE_PAIR, &answer.queue_pair);
                writer.finish()
            }
            Reply::Refused(refusal) => {
                let mut writer = begin(kind::REFUSED);
                match refusal {
                    Refusal::OtherScheme { theirs } => {
                        writer.push(tag::REFUSAL, &[refusal::OTHER_SCHEME]);
                        writer.push(tag::SCHEME, cut(theirs, SCHEME_BYTES_MAX));
                    }
                    Refusal::OtherChunks { theirs } => {
                        writer.push(tag::REFUSAL, &[refusal::OTHER_CHUNKS]);
                        writer.push(tag::CHUNK_BYTES, &theirs.to_be_bytes());
                    }
                    Refusal::WrongToken => writer.push(tag::REFUSAL, &[refusal::WRONG_TOKEN]),
                    Refusal::NoToken => writer.push(tag::REFUSAL, &[refusal::NO_TOKEN]),
                    Refusal::Other(text) => {
                        writer.push(tag::REFUSAL, &[refusal::OTHER]);
                        writer.push(tag::TEXT, cut(text, TEXT_BYTES_MAX));
                    }
                }
                writer.finish()
            }
        }
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FieldError> {
        let (kind, fields) = read(bytes, &[kind::ANSWER, kind::REFUSED])?;
        if kind == kind::ANSWER {
            return Ok(Reply::Answer(Answer {
                capabilities: fields::need(&fields, tag::CAPABILITIES, "capabilities")?.u64()?,
                mtu: read_mtu(&fields)?,
                paths: read_paths(&fields)?,
                scheme: fields::need(&fields, tag::SCHEME, "scheme")?.text(SCHEME_BYTES_MAX)?.to_owned(),
                chunk_bytes: chunk_bytes(fields::need(&fields, tag::CHUNK_BYTES, "chunk bytes")?)?,
                message_bytes_max: read_message_bytes_max(&fields)?,
                channels: read_channels(&fields)?,
                queue_pair: fields::need(&fields, tag::QUEUE_PAIR, "queue pair")?.value.to_vec(),
            }));
        }
        let [code] = fields::need(&fields, tag::REFUSAL, "refusal")?.array()?;
        Ok(Reply::Refused(match code {
            refusal::OTHER_SCHEME => {
                let theirs = fields::need(&fields, tag::SCHEME, "scheme")?.text(SCHEME_BYTES_MAX)?.to_owned();
                Refusal::OtherScheme { theirs }
            }
            refusal::OTHER_CHUNKS => {
                Refusal::OtherChunks { theirs: chunk_bytes(fields::need(&fields, tag::CHUNK_BYTES, "chunk bytes")?)? }
            }
            refusal::WRONG_TOKEN => Refusal::WrongToken,
            refusal::NO_TOKEN => Refusal::NoToken,
            code => {
                let text = fields::find(&fields, tag::TEXT, "text")?;
                let text = text.map(|text| text.text(TEXT_BYTES_MAX)).transpose()?;
                Refusal::Other(text.map_or_else(|| format!("for a reason numbered {code}"), str::to_owned))
            }
        }))
    }
}

impl Info {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = begin(kind::INFO);
        push_paths(&mut writer, &self.paths);
        writer.push(tag::QUEUE_PAIR, &self.queue_pair);
        writer.finish()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FieldError> {
        let fields = read(bytes, &[kind::INFO])?.1;
        let queue_pair = fields::need(&fields, tag::QUEUE_PAIR, "queue pair")?.value.to_vec();
        Ok(Info { paths: read_paths(&fields)?, queue_pair })
    }
}

impl PathReport {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut writer = begin(kind::PATH_REPORT);
        writer.push(tag::HAS_HEARD, &[u8::from(self.has_heard)]);
        writer.finish()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FieldError> {
        let fields = read(bytes, &[kind::PATH_REPORT])?.1;
        let [has_heard] = fields::need(&fields, tag::HAS_HEARD, "whether anything was heard")?.array()?;
        Ok(PathReport { has_heard: has_heard != 0 })
    }
}

fn begin(kind: u8) -> FieldWriter {
    let mut writer = FieldWriter::new(*b"LHC", VERSION);
    writer.push(tag::KIND, &[kind]);
    writer
}

fn read<'a>(bytes: &'a [u8], expected: &[u8]) -> Result<(u8, Vec<Field<'a>>), FieldError> {
    let fields = fields::read(bytes, MAGIC, VERSION, BYTES_MAX, Padding::None)?;
    let field = fields::need(&fields, tag::KIND, "kind of message")?;
    let [kind] = field.array()?;
    if !expected.contains(&kind) {
        return Err(field.wrong(format!("expected one of {expected:?}, came {kind}")));
    }
    Ok((kind, fields))
}

/// The beginning of a text that has so many bytes at most.
fn cut(text: &str, most: usize) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(most)]
}

fn push_paths(writer: &mut FieldWriter, paths: &[PathInfo]) {
    for path in paths.iter().take(PATHS_MAX) {
        writer.push(tag::PATH, &[&path.gid.0[..], &path.udp_port.to_be_bytes()].concat());
    }
}

fn read_paths(fields: &[Field<'_>]) -> Result<Vec<PathInfo>, FieldError> {
    let with_tag = fields.iter().filter(|field| field.tag == tag::PATH);
    let path = |field: &Field<'_>| {
        let bytes = Named { name: "path", value: field.value }.array::<18>()?;
        let gid = Gid(bytes[..16].try_into().expect("16 bytes"));
        Ok(PathInfo { gid, udp_port: u16::from_be_bytes([bytes[16], bytes[17]]) })
    };
    let paths = with_tag.map(path).collect::<Result<Vec<_>, FieldError>>()?;
    match paths.len() {
        0 => Err(FieldError::Missing("path")),
        1..=PATHS_MAX => Ok(paths),
        many => {
            let message = format!("{many} of them, expected at most {PATHS_MAX}");
            Err(FieldError::Value { field: "path", message })
        }
    }
}

fn read_mtu(fields: &[Field<'_>]) -> Result<Mtu, FieldError> {
    let field = fields::need(fields, tag::MTU, "MTU")?;
    let bytes = field.u32()?;
    let known = Mtu::ALL.into_iter().find(|mtu| mtu.byte_count() == bytes);
    known.ok_or_else(|| field.wrong(format!("there is no path MTU of {bytes}")))
}

fn read_message_bytes_max(fields: &[Field<'_>]) -> Result<u64, FieldError> {
    let field = fields::need(fields, tag::MESSAGE_BYTES_MAX, "longest message")?;
    match field.u64()? {
        0 => Err(field.wrong("expected more than 0")),
        bytes => Ok(bytes),
    }
}

fn read_channels(fields: &[Field<'_>]) -> Result<u16, FieldError> {
    let field = fields::need(fields, tag::CHANNELS, "channels")?;
    match field.u16()? {
        0 => Err(field.wrong("expected more than 0")),
        channels => Ok(channels),
    }
}

fn chunk_bytes(field: Named<'_>) -> Result<u32, FieldError> {
    match field.u32()? {
        0 => Err(field.wrong("expected more than 0")),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
#[path = "handshake_bytes_tests.rs"]
mod tests;
