//! Forward error correction, on the command line of a client and a server.

use longhaul_perf::{DeviceChoice, EndSettings, FEC_REPAIR_PACKETS_MAX, SOFTNIC};
use longhaul_softnic_udp::Fec;

use crate::stop::Stop;

/// `--fec` and who does the other half.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct FecOptions {
    /// Repair lost packets below RC or UC: lowar:R,C (XOR), lowar:mds:R,C, or auto, auto:xor, auto:mds to follow the link
    ///
    /// C repair packets follow each R packets of a message, and the other end restores what was lost before the transport
    /// misses it. For messages of many packets lowar:32,1 costs 3 % and is meant for losses up to 1e-4, lowar:mds:64,8 costs
    /// 12 % and suits 1e-2; messages of C packets or fewer are sent twice. With auto the receiver reports loss and bursts, and
    /// the sender takes the code that moves most data. Bounds follow behind commas: auto:mds,overhead=10% (default 25 %) and
    /// auto,unrepaired=1e-7, the cheapest code that leaves at most this share unrepaired. The report explains every change.
    /// Repair packets come on top of a rate limit. Both ends need -d softnic, unless --fec-peer is gateway. A server takes
    /// --fec only with --fec-peer gateway.
    #[arg(long, value_name = "CODE")]
    pub(crate) fec: Option<Fec>,

    /// Who restores what --fec protects: the other end, which must agree, or a gateway before it, which nobody asks
    #[arg(long, value_name = "PEER", value_enum, default_value = "softnic", requires = "fec")]
    pub(crate) fec_peer: FecPeer,
}

/// Who restores what `--fec` protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FecPeer {
    /// The other end's software RNIC
    Softnic,
    /// A gateway before the other end
    Gateway,
}

impl FecPeer {
    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            FecPeer::Softnic => "softnic",
            FecPeer::Gateway => "gateway",
        }
    }
}

impl FecOptions {
    /// Says what is wrong, before anything is opened.
    pub(crate) fn check(&self, choice: &DeviceChoice) -> Result<(), Stop> {
        let Some(fec) = self.fec else { return Ok(()) };
        if fec.first_code().repair_packets() > FEC_REPAIR_PACKETS_MAX {
            return Err(Stop::Usage(format!(
                "--fec {fec}: a block has at most {FEC_REPAIR_PACKETS_MAX} repair packets here; use fewer"
            )));
        }
        if !choice.is_softnic() {
            return Err(Stop::Usage(format!(
                "--fec {fec} is for the software RNIC, whose packets pass through this program; use -d {SOFTNIC}"
            )));
        }
        Ok(())
    }

    /// The same for a server, whose clients decide unless a gateway stands before them.
    pub(crate) fn check_server(&self, choice: &DeviceChoice) -> Result<(), Stop> {
        if let Some(fec) = self.fec.filter(|_| self.fec_peer == FecPeer::Softnic) {
            return Err(Stop::Usage(format!(
                "--fec {fec}: the client decides, unless a gateway stands before it; leave it out, or add --fec-peer gateway"
            )));
        }
        self.check(choice)
    }

    /// Towards a gateway before the peer.
    pub(crate) fn gateway(&self) -> Option<Fec> {
        self.fec.filter(|_| self.fec_peer == FecPeer::Gateway)
    }

    /// What the other end must agree to.
    pub(crate) fn agreed(&self) -> Option<Fec> {
        self.fec.filter(|_| self.fec_peer == FecPeer::Softnic)
    }

    /// Settings of an end with it.
    pub(crate) fn apply_to(&self, mut settings: EndSettings) -> EndSettings {
        settings.softnic.fec_gateway = self.gateway();
        settings
    }
}
