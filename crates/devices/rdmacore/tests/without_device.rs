//! What a host without an RDMA device answers, and with one, what a name that nobody has is answered.

use longhaul_rdmacore::{ListError, OpenError, RdmaDevice, devices};

#[test]
fn a_host_says_what_it_has() {
    match devices() {
        // Without the kernel's RDMA there is nothing to list, and that is no error.
        Ok(devices) => {
            let is_there = std::path::Path::new("/sys/class/infiniband").exists();
            assert!(is_there || devices.is_empty(), "{devices:?}");
            assert!(devices.is_sorted_by(|one, other| one.name < other.name), "{devices:?}");
        }
        Err(error @ ListError::Load(_)) => {
            eprintln!("without libibverbs: {error}");
            assert!(error.to_string().contains("libibverbs"), "{error}");
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

#[test]
fn a_device_that_nobody_has_is_refused_with_what_there_is() {
    let error = RdmaDevice::open("no-such-device").err().expect("nobody calls a device that");
    match &error {
        OpenError::NoSuchDevice { name, known } => {
            let listed: Vec<String> = devices().unwrap().into_iter().map(|device| device.name).collect();
            assert_eq!((name.as_str(), known), ("no-such-device", &listed));
            assert!(
                error.to_string().starts_with("there is no RDMA device no-such-device: libibverbs finds "),
                "{error}"
            );
        }
        OpenError::List(ListError::Load(_)) => eprintln!("without libibverbs: {error}"),
        _ => panic!("{error}"),
    }
}

/// The library is loaded once; what it answers does not depend on who asks first.
#[test]
fn several_threads_may_ask_at_once() {
    let ask = || devices().map_err(|error| error.to_string());
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().expect("listing does not panic")).collect()
    });
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
}
