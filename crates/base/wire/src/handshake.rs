//! The handshake: the messages by which two ends agree on a connection, before its first packet.
//!
//! ```text
//!   "LHC" · version 1, then fields (see [`crate::fields`]), the kind first:
//!
//!   1  kind                     1     9  token               16
//!   2  capabilities             8    10  local_address  4 or 16
//!   3  mtu                      4    11  peer_address   4 or 16
//!   4  path          16 + 2, each    12  queue_pair       bytes
//!   5  scheme                text    13  refusal              1
//!   6  chunk_bytes              4    14  text              text
//!   7  message_bytes_max        8    15  has_heard            1
//!   8  channels                 2
//!
//!   hello     capabilities mtu path… scheme [chunk_bytes] message_bytes_max channels [token] [local_address peer_address]
//!   answer    capabilities mtu path… scheme chunk_bytes message_bytes_max channels queue_pair
//!   info      path… queue_pair
//!   refused   refusal [scheme | chunk_bytes | text]
//!   report    has_heard
//! ```
//!
//! A queue pair is the bytes of [`crate::info`]. Longhaul carries the messages over TCP, each behind its length in four bytes.

use core::net::IpAddr;

use crate::Truncated;
use crate::field::read_u16;
use crate::fields::{self, Field, FieldError, FieldProblem, FieldWriter, Fields, Form, Repeatable, Repeated, Tag};

/// The version that this code writes and reads.
pub const VERSION: u8 = 1;
/// More than any message has: the info of as many internal queue pairs as there may be.
pub const BYTES_MAX: usize = 16 << 10;
/// The longest name of a scheme; what is longer is cut.
pub const SCHEME_BYTES_MAX: usize = 256;
/// The longest text of a refusal; what is longer is cut.
pub const TEXT_BYTES_MAX: usize = 1024;
/// The most paths.
pub const PATHS_MAX: usize = 64;

const FORM: Form = Form { magic: "LHC", version: VERSION, bytes_max: BYTES_MAX, may_be_padded: false };

mod tag {
    use crate::fields::Tag;

    pub(super) const KIND: Tag = Tag(1, "kind of message");
    pub(super) const CAPABILITIES: Tag = Tag(2, "capabilities");
    pub(super) const MTU: Tag = Tag(3, "MTU");
    pub(super) const PATH: Tag = Tag(4, "path");
    pub(super) const SCHEME: Tag = Tag(5, "scheme");
    pub(super) const CHUNK_BYTES: Tag = Tag(6, "chunk bytes");
    pub(super) const MESSAGE_BYTES_MAX: Tag = Tag(7, "longest message");
    pub(super) const CHANNELS: Tag = Tag(8, "channels");
    pub(super) const TOKEN: Tag = Tag(9, "token");
    pub(super) const LOCAL_ADDRESS: Tag = Tag(10, "local address");
    pub(super) const PEER_ADDRESS: Tag = Tag(11, "peer address");
    pub(super) const QUEUE_PAIR: Tag = Tag(12, "queue pair");
    pub(super) const REFUSAL: Tag = Tag(13, "refusal");
    pub(super) const TEXT: Tag = Tag(14, "text");
    pub(super) const HAS_HEARD: Tag = Tag(15, "whether anything was heard");
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
}

/// Any message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Message<'a> {
    /// The first: what the connecting end can, wants and is.
    Hello(Hello<'a>),
    /// The second: what is agreed, and how to reach the accepting end.
    Answer(Answer<'a>),
    /// The third: how to reach the connecting end.
    Info(Info<'a>),
    /// In place of the second: why not.
    Refused(Refusal<'a>),
    /// What an end says when it gives up because UDP packets do not pass: whether any has come from the peer.
    PathReport {
        /// Whether one has.
        has_heard: bool,
    },
}

/// What the connecting end can, wants and is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hello<'a> {
    /// What the device can, as bits.
    pub capabilities: u64,
    /// Payload of a packet that it can send.
    pub mtu: u32,
    /// Where it can be reached.
    pub paths: Repeated<'a, Path>,
    /// The scheme's name.
    pub scheme: &'a str,
    /// Bytes of a chunk, if it wants a certain number of them.
    pub chunk_bytes: Option<u32>,
    /// The longest message that it takes.
    pub message_bytes_max: u64,
    /// Channels.
    pub channels: u16,
    /// Of the listener's handle, if it has that.
    pub token: Option<[u8; 16]>,
    /// Both ends of the TCP connection, as the sender sees them: its own and the peer's.
    pub addresses: Option<(IpAddr, IpAddr)>,
}

/// What is agreed, and how to reach the accepting end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Answer<'a> {
    /// What the device can, as bits.
    pub capabilities: u64,
    /// Payload of a packet.
    pub mtu: u32,
    /// Where it can be reached.
    pub paths: Repeated<'a, Path>,
    /// The scheme's name.
    pub scheme: &'a str,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// The longest message.
    pub message_bytes_max: u64,
    /// Channels.
    pub channels: u16,
    /// Its queue pairs: bytes of [`crate::info::QueuePairInfo`].
    pub queue_pair: &'a [u8],
}

/// How to reach the connecting end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Info<'a> {
    /// Where it can be reached.
    pub paths: Repeated<'a, Path>,
    /// Its queue pairs: bytes of [`crate::info::QueuePairInfo`].
    pub queue_pair: &'a [u8],
}

/// Why there is no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal<'a> {
    /// The accepting end has another scheme.
    OtherScheme {
        /// That one.
        theirs: &'a str,
    },
    /// The accepting end wants other chunks.
    OtherChunks {
        /// Of this many bytes.
        theirs: u32,
    },
    /// The token is not the listener's.
    WrongToken,
    /// There is no token, and there must be.
    NoToken,
    /// Anything else, and what later versions add.
    Other {
        /// [`Refusal::OTHER`], or a number that is not known.
        number: u8,
        /// In words.
        text: Option<&'a str>,
    },
}

impl Refusal<'_> {
    /// The number of a refusal that has only words.
    pub const OTHER: u8 = 255;
}

/// Where a device can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Its GID.
    pub gid: [u8; 16],
    /// Its UDP port.
    pub udp_port: u16,
}

impl Repeatable for Path {
    const TAG: Tag = tag::PATH;

    fn from_field(field: Field<'_>) -> Result<Path, FieldError> {
        let bytes: [u8; 18] = field.array()?;
        let (gid, port) = bytes.split_first_chunk().expect("18 bytes are more than 16");
        Ok(Path { gid: *gid, udp_port: read_u16(port, 0..2) })
    }
}

impl<'a> Message<'a> {
    /// Reads one.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, FieldError> {
        let fields = Fields::new_checked(&FORM, bytes)?;
        let kind = fields.need(tag::KIND)?;
        match kind.u8()? {
            kind::HELLO => Hello::parse(fields).map(Message::Hello),
            kind::ANSWER => Answer::parse(fields).map(Message::Answer),
            kind::INFO => {
                Ok(Message::Info(Info { paths: paths(fields)?, queue_pair: fields.need(tag::QUEUE_PAIR)?.value }))
            }
            kind::REFUSED => Refusal::parse(fields).map(Message::Refused),
            kind::PATH_REPORT => Ok(Message::PathReport { has_heard: fields.need(tag::HAS_HEARD)?.u8()? != 0 }),
            unknown => Err(kind.wrong(FieldProblem::Kind(unknown))),
        }
    }

    /// Writes it at the beginning of `bytes`; how many they are.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<usize, Truncated> {
        let mut writer = FieldWriter::new(bytes, &FORM);
        writer.push(tag::KIND, &[self.kind()]);
        match self {
            Message::Hello(hello) => hello.emit(&mut writer),
            Message::Answer(answer) => answer.emit(&mut writer),
            Message::Info(info) => {
                push_paths(&mut writer, &info.paths);
                writer.push(tag::QUEUE_PAIR, info.queue_pair);
            }
            Message::Refused(refusal) => refusal.emit(&mut writer),
            Message::PathReport { has_heard } => writer.push(tag::HAS_HEARD, &[(*has_heard).into()]),
        }
        writer.finish()
    }

    /// Bytes of it.
    pub fn byte_count(&self) -> usize {
        fields::byte_count(|bytes| self.emit(bytes))
    }

    /// The error of an end that has not expected this message.
    pub fn unexpected(&self) -> FieldError {
        FieldError::Value { field: tag::KIND.1, problem: FieldProblem::Kind(self.kind()) }
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Hello(_) => kind::HELLO,
            Message::Answer(_) => kind::ANSWER,
            Message::Info(_) => kind::INFO,
            Message::Refused(_) => kind::REFUSED,
            Message::PathReport { .. } => kind::PATH_REPORT,
        }
    }
}

impl<'a> Hello<'a> {
    fn parse(fields: Fields<'a>) -> Result<Hello<'a>, FieldError> {
        let address = |tag| fields.find(tag)?.map(|field| field.address()).transpose();
        let (local, peer) = (address(tag::LOCAL_ADDRESS)?, address(tag::PEER_ADDRESS)?);
        Ok(Hello {
            capabilities: fields.need(tag::CAPABILITIES)?.u64()?,
            mtu: fields.need(tag::MTU)?.u32()?,
            paths: paths(fields)?,
            scheme: fields.need(tag::SCHEME)?.text(SCHEME_BYTES_MAX)?,
            chunk_bytes: fields.find(tag::CHUNK_BYTES)?.map(chunk_bytes).transpose()?,
            message_bytes_max: message_bytes_max(fields)?,
            channels: channels(fields)?,
            token: fields.find(tag::TOKEN)?.map(|field| field.array()).transpose()?,
            addresses: local.zip(peer),
        })
    }

    fn emit(&self, writer: &mut FieldWriter<'_>) {
        writer.push(tag::CAPABILITIES, &self.capabilities.to_be_bytes());
        writer.push(tag::MTU, &self.mtu.to_be_bytes());
        push_paths(writer, &self.paths);
        writer.push(tag::SCHEME, cut(self.scheme, SCHEME_BYTES_MAX));
        if let Some(chunk_bytes) = self.chunk_bytes {
            writer.push(tag::CHUNK_BYTES, &chunk_bytes.to_be_bytes());
        }
        writer.push(tag::MESSAGE_BYTES_MAX, &self.message_bytes_max.to_be_bytes());
        writer.push(tag::CHANNELS, &self.channels.to_be_bytes());
        if let Some(token) = &self.token {
            writer.push(tag::TOKEN, token);
        }
        if let Some((local, peer)) = self.addresses {
            writer.push_address(tag::LOCAL_ADDRESS, local);
            writer.push_address(tag::PEER_ADDRESS, peer);
        }
    }
}

impl<'a> Answer<'a> {
    fn parse(fields: Fields<'a>) -> Result<Answer<'a>, FieldError> {
        Ok(Answer {
            capabilities: fields.need(tag::CAPABILITIES)?.u64()?,
            mtu: fields.need(tag::MTU)?.u32()?,
            paths: paths(fields)?,
            scheme: fields.need(tag::SCHEME)?.text(SCHEME_BYTES_MAX)?,
            chunk_bytes: chunk_bytes(fields.need(tag::CHUNK_BYTES)?)?,
            message_bytes_max: message_bytes_max(fields)?,
            channels: channels(fields)?,
            queue_pair: fields.need(tag::QUEUE_PAIR)?.value,
        })
    }

    fn emit(&self, writer: &mut FieldWriter<'_>) {
        writer.push(tag::CAPABILITIES, &self.capabilities.to_be_bytes());
        writer.push(tag::MTU, &self.mtu.to_be_bytes());
        push_paths(writer, &self.paths);
        writer.push(tag::SCHEME, cut(self.scheme, SCHEME_BYTES_MAX));
        writer.push(tag::CHUNK_BYTES, &self.chunk_bytes.to_be_bytes());
        writer.push(tag::MESSAGE_BYTES_MAX, &self.message_bytes_max.to_be_bytes());
        writer.push(tag::CHANNELS, &self.channels.to_be_bytes());
        writer.push(tag::QUEUE_PAIR, self.queue_pair);
    }
}

impl<'a> Refusal<'a> {
    fn parse(fields: Fields<'a>) -> Result<Refusal<'a>, FieldError> {
        Ok(match fields.need(tag::REFUSAL)?.u8()? {
            refusal::OTHER_SCHEME => Refusal::OtherScheme { theirs: fields.need(tag::SCHEME)?.text(SCHEME_BYTES_MAX)? },
            refusal::OTHER_CHUNKS => Refusal::OtherChunks { theirs: chunk_bytes(fields.need(tag::CHUNK_BYTES)?)? },
            refusal::WRONG_TOKEN => Refusal::WrongToken,
            refusal::NO_TOKEN => Refusal::NoToken,
            number => {
                let text = fields.find(tag::TEXT)?.map(|text| text.text(TEXT_BYTES_MAX)).transpose()?;
                Refusal::Other { number, text }
            }
        })
    }

    fn emit(&self, writer: &mut FieldWriter<'_>) {
        match self {
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
            Refusal::Other { number, text } => {
                writer.push(tag::REFUSAL, &[*number]);
                if let Some(text) = text {
                    writer.push(tag::TEXT, cut(text, TEXT_BYTES_MAX));
                }
            }
        }
    }
}

/// The beginning of a text, at most `most` bytes.
fn cut(text: &str, most: usize) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(most)]
}

fn push_paths(writer: &mut FieldWriter<'_>, paths: &Repeated<'_, Path>) {
    for path in paths.iter().take(PATHS_MAX) {
        writer.push_parts(tag::PATH, [&path.gid, &path.udp_port.to_be_bytes()]);
    }
}

fn paths(fields: Fields<'_>) -> Result<Repeated<'_, Path>, FieldError> {
    let paths = Repeated::parse(fields)?;
    match paths.iter().count() {
        ..=PATHS_MAX => Ok(paths),
        found => Err(FieldError::Value { field: tag::PATH.1, problem: FieldProblem::Count { found, most: PATHS_MAX } }),
    }
}

fn message_bytes_max(fields: Fields<'_>) -> Result<u64, FieldError> {
    let field = fields.need(tag::MESSAGE_BYTES_MAX)?;
    field.positive(field.u64()?)
}

fn channels(fields: Fields<'_>) -> Result<u16, FieldError> {
    let field = fields.need(tag::CHANNELS)?;
    field.positive(field.u16()?)
}

fn chunk_bytes(field: Field<'_>) -> Result<u32, FieldError> {
    field.positive(field.u32()?)
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
