//! Answers for programs: JSON, and comma-separated values.

use longhaul_plan::question::Row;
use serde_json::{Value, json};

use super::answered::Answered;
use super::notes::Note;

/// One answer is the object itself; several are in its `answers`. Notes are about all of them.
pub(super) fn to_json(answered: &[Answered], notes: &[Note]) -> Value {
    let mut answers: Vec<Value> = answered.iter().map(one_to_json).collect();
    let mut value = match answers.len() {
        1 => answers.remove(0),
        _ => json!({ "answers": answers }),
    };
    value["notes"] = notes.iter().map(Note::to_json).collect();
    value["schema"] = 1.into();
    value
}

fn one_to_json(Answered { question, answer }: &Answered) -> Value {
    let link = &question.link;
    let taken = &answer.recommendation;
    let mut value = json!({
        "rate_bits_per_second": link.rate_bits_per_second,
        "rtt_ms": link.round_trip_seconds * 1e3,
        "loss": link.loss.mean(),
        "burst_packets": link.loss.burst_packets(),
        "size_bytes": question.message_bytes,
        "packet_bytes": link.packet_bytes,
        "ring_sites": question.ring_sites,
        "deadline_ms": question.deadline_seconds.map(|seconds| seconds * 1e3),
        "coding_bytes_per_second": {
            "mds": question.coding.mds_bytes_per_second,
            "xor": question.coding.xor_bytes_per_second,
        },
        "schemes": answer.rows.iter().map(row_to_json).collect::<Vec<Value>>(),
        "refused": answer.refused.iter().map(|(candidate, error)| json!({
            "scheme": candidate.to_string(),
            "reason": error.to_string(),
        })).collect::<Vec<Value>>(),
        "recommendation": {
            "scheme": taken.scheme.to_string(),
            "chunk_bytes": taken.chunk_bytes,
            "reason": taken.reason,
            "second": taken.second.map(|second| second.to_string()),
            "margin": taken.margin,
        },
    });
    if let Some(arrived) = answer.arrived_once {
        value["arrived_once"] = json!({
            "mean": arrived.mean,
            "p50": arrived.p50,
            "p99": arrived.p99,
            "p999": arrived.p999,
            "all": arrived.all,
        });
    }
    value
}

fn row_to_json(row: &Row) -> Value {
    let [mean, p50, p99, p999] = milliseconds(row);
    let mut value = json!({
        "scheme": row.scheme.to_string(),
        "chunk_bytes": row.chunk_bytes,
        "completion_ms": { "mean": mean, "p50": p50, "p99": p99, "p999": p999 },
        "slowdown": row.slowdown,
        "extra_bandwidth": row.extra_bandwidth,
        "cores": row.cores,
        "window_bytes": row.window_bytes.round(),
    });
    if let Some(share) = row.within_deadline {
        value["within_deadline"] = share.into();
    }
    value
}

/// One line for each scheme of each answer.
pub(super) fn to_csv(answered: &[Answered]) -> String {
    let mut text = "rate_bits_per_second,rtt_ms,loss,burst_packets,size_bytes,ring_sites,scheme,chunk_bytes,mean_ms,p50_ms,p99_ms,p999_ms,\
                    slowdown,extra_bandwidth,cores,window_bytes,within_deadline,recommended\n"
        .to_owned();
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for Answered { question, answer } in answered {
        let link = &question.link;
        for row in &answer.rows {
            let [mean, p50, p99, p999] = milliseconds(row);
            let is_recommended = answer.is_recommended(row);
            // The comma in a code's name would be one too many.
            text += &format!(
                "{},{},{:e},{},{},{},\"{}\",{},{mean},{p50},{p99},{p999},{},{},{},{},{},{is_recommended}\n",
                link.rate_bits_per_second,
                link.round_trip_seconds * 1e3,
                link.loss.mean(),
                optional(link.loss.burst_packets()),
                question.message_bytes,
                optional(question.ring_sites.map(f64::from)),
                row.scheme,
                row.chunk_bytes,
                row.slowdown,
                row.extra_bandwidth,
                row.cores,
                row.window_bytes.round(),
                optional(row.within_deadline),
            );
        }
    }
    text
}

fn milliseconds(row: &Row) -> [f64; 4] {
    let completion = &row.completion;
    [completion.mean, completion.p50, completion.p99, completion.p999].map(|seconds| seconds * 1e3)
}
