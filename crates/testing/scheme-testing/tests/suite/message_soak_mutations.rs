//! Deliberate mistakes in `sdr`, `reliable` and `runtime`: the soak of messages finds each of them.
//!
//! To save time, each search starts at a seed shortly before one that is known to find it; from the first seed on it
//! takes up to 400. A generation that is not checked (`SkipGenerationCheck`) is not among them: since no two messages
//! have the same addresses, hardly a packet gets that far. Packets that are late on purpose find it
//! (`sdr_late_packets.rs`).

use std::sync::Arc;

use longhaul_reliable::{Attributes, Connection, Mutation as SchemeMutation, Scheme};
use longhaul_runtime::{Mutation as RuntimeMutation, Shared};
use longhaul_scheme_testing::message_soak::{
    MakeQueuePair, MessageSoakOptions, Rule, StartConnection, run_message_seed,
};
use longhaul_sdr::{Mutation, QueuePair};

const SEEDS_MAX: u64 = 100;

/// Finds a seed that breaks a rule with the mistake, and none without it.
fn find(first_seed: u64, wrong: &MessageSoakOptions) {
    let right = MessageSoakOptions::default();
    for seed in first_seed..first_seed + SEEDS_MAX {
        let found = run_message_seed(seed, wrong).violations;
        // An end that is busy may be so without the mistake as well, only for a little less long.
        if let Some(violation) = found.first().filter(|violation| violation.rule != Rule::Busy)
            && run_message_seed(seed, &right).violations.is_empty()
        {
            println!("seed {seed}: {violation:?}");
            return;
        }
    }
    panic!("not found in {SEEDS_MAX} seeds from {first_seed} on");
}

macro_rules! queue_pair_mutations {
    ($($name:ident: $mutation:ident, from $seed:literal;)*) => {$(
        #[test]
        fn $name() {
            let make_queue_pair: MakeQueuePair =
                |context, attributes| QueuePair::create_mutated(context, attributes, Mutation::$mutation);
            find($seed, &MessageSoakOptions { make_queue_pair, ..Default::default() });
        }
    )*};
}

queue_pair_mutations! {
    a_key_stays_valid: SkipKeyChange, from 1;
    messages_share_addresses: ShareSlots, from 1;
    addresses_are_used_again: ReuseAddresses, from 385;
    an_empty_packet_is_believed: BelieveEmptyPackets, from 1;
    the_receiver_id_is_ignored: IgnoreReceiver, from 1;
    a_clear_to_send_is_sent_once: NeverRepeatClear, from 1;
}

macro_rules! connection_mutations {
    ($($name:ident: $mutation:ident, from $seed:literal;)*) => {$(
        #[test]
        fn $name() {
            fn make(queue_pair: QueuePair, scheme: Arc<dyn Scheme>, mut attributes: Attributes) -> Connection {
                attributes.mutation = Some(SchemeMutation::$mutation);
                Connection::new(queue_pair, scheme, attributes)
            }
            find($seed, &MessageSoakOptions { make_connection: make, ..Default::default() });
        }
    )*};
}

connection_mutations! {
    withdrawals_are_not_told: WithdrawalsUntold, from 1;
    progress_is_ignored: ProgressIgnored, from 1;
    refusals_are_done: RefusalsAreDone, from 1;
    contents_of_offers_are_ignored: ContentsIgnored, from 1;
}

macro_rules! runtime_mutations {
    ($($name:ident: $mutation:ident, from $seed:literal;)*) => {$(
        #[test]
        fn $name() {
            let start_connection: StartConnection = |connection, letterbox, silence_max, peer| {
                Shared::start_mutated(connection, letterbox, silence_max, peer, RuntimeMutation::$mutation)
            };
            find($seed, &MessageSoakOptions { start_connection, ..Default::default() });
        }
    )*};
}

runtime_mutations! {
    events_are_not_asked_for: EventsUnasked, from 1;
    deadlines_are_forgotten: DeadlinesForgotten, from 1;
}
