// Workers' clients for tests: every call waits, with a deadline.
#ifndef TFDIST_TESTS_CORE_PS_WORKER_H_
#define TFDIST_TESTS_CORE_PS_WORKER_H_

#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/calls.h"
#include "core/ps/client/client.h"
#include "ps/server.h"

namespace tfdist::testing {

constexpr double kPatience = 20;  // seconds

inline ps::ServerOptions AsyncJob(int workers) {
  ps::ServerOptions options;
  options.schedule.workers = workers;
  options.schedule.num_aggregate = workers;
  return options;
}

inline ps::ServerOptions SyncJob(int workers) {
  ps::ServerOptions options = AsyncJob(workers);
  options.schedule.mode = ps::Mode::kSync;
  return options;
}

// Memory with these values, which it owns.
template <typename T>
ps::Memory Hold(std::vector<T> values) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return {reinterpret_cast<char*>(owner->data()), owner};
}

// Starts a call that takes a `done`.
inline Ending Start(const std::function<void(ps::Done)>& call) {
  // A second `done` would throw, and end the test.
  auto promise = std::make_shared<std::promise<Status>>();
  Ending ending = promise->get_future();
  call([promise](const Status& status) { promise->set_value(status); });
  return ending;
}

inline Status Call(const std::function<void(ps::Done)>& call) {
  Ending ending = Start(call);
  return Wait(ending, kPatience + 10);
}

// A worker's client.
class Worker {
 public:
  explicit Worker(int rank, int workers = 1, int servers = 1, double timeout = kPatience,
                  uint64_t process = 0, bool expose = true, int n_push = 1, int n_fetch = 1) {
    ps::ClientOptions options;
    options.worker = rank;
    options.workers = workers;
    options.process = process != 0 ? process : 1000 + static_cast<uint64_t>(rank);
    options.servers = servers;
    options.timeout_seconds = timeout;
    options.expose = expose;
    options.n_push = n_push;
    options.n_fetch = n_fetch;
    REQUIRE_OK(ps::Client::Create(options, &client_));
  }

  ps::Client& client() { return *client_; }

  Status Connect(int server, int port, uint64_t incarnation, double timeout = kPatience) {
    return client_->Connect(server, StrCat("127.0.0.1:", port), TestKey(), incarnation, timeout);
  }
  void Connect(const ps::Server& server, int index = 0) {
    REQUIRE_OK(Connect(index, server.port(), server.incarnation()));
  }

  // Adds a parameter with one shard per count, on servers 0, 1, ...
  int Add(const std::string& name, const std::vector<uint64_t>& counts,
          DType dtype = DType::kFloat32, int first_server = 0) {
    ps::ParameterSpec spec;
    spec.name = name;
    spec.dtype = dtype;
    for (size_t i = 0; i < counts.size(); ++i) {
      const std::string shard = counts.size() == 1 ? name : StrCat(name, "/", i);
      spec.shards.push_back({first_server + static_cast<int>(i), shard, spec.elements, counts[i]});
      spec.elements += counts[i];
    }
    int id = -1;
    REQUIRE_OK(client_->parameters().Add(std::move(spec), &id));
    return id;
  }

  template <typename T>
  Status Create(int parameter, std::vector<T> values) {
    return Call([&](ps::Done done) {
      client_->parameters().Create(parameter, Hold(std::move(values)), done);
    });
  }
  // Adds and creates a parameter of one shard.
  template <typename T>
  int Make(const std::string& name, std::vector<T> values, DType dtype = DType::kFloat32) {
    const int parameter = Add(name, {values.size()}, dtype);
    REQUIRE_OK(Create(parameter, std::move(values)));
    return parameter;
  }

  // Whether pulls reuse the memory of the last pulled value.
  bool in_place = false;
  // The parameters for which the latest pull allocated memory, in order.
  std::vector<int> allocated;

  Ending StartPull(const std::vector<int>& parameters, bool begins_step = true) {
    allocated.clear();
    const auto allocate = [this](int parameter) -> ps::Memory {
      allocated.push_back(parameter);
      if (in_place) {
        const ps::Memory pulled = client_->parameters().Pulled(parameter);
        if (pulled.data != nullptr) return pulled;
      }
      const ps::ParameterSpec& spec = client_->parameters().spec(parameter);
      // Not zeros, so that bytes that are not received show.
      return Hold(std::vector<char>(spec.elements * ByteSize(spec.dtype), 0x55));
    };
    return Start([&](ps::Done done) {
      client_->parameters().Pull(parameters, begins_step, allocate, std::move(done));
    });
  }
  Status Pull(const std::vector<int>& parameters, bool begins_step = true) {
    Ending ending = StartPull(parameters, begins_step);
    return Wait(ending, kPatience + 10);
  }

  template <typename T = float>
  std::vector<T> Value(int parameter) {
    const ps::Memory pulled = client_->parameters().Pulled(parameter);
    std::vector<T> values(client_->parameters().spec(parameter).elements);
    if (values.empty()) return values;
    REQUIRE(pulled.data != nullptr);
    std::memcpy(values.data(), pulled.data, values.size() * sizeof(T));
    return values;
  }

  template <typename T>
  Status Push(std::map<int, std::vector<T>> changes) {
    std::vector<ps::Value> values;
    for (auto& [parameter, value] : changes) values.push_back({parameter, Hold(std::move(value))});
    return Call([&](ps::Done done) { client_->parameters().Push(std::move(values), done); });
  }
  Status PushStaged() {
    return Call([&](ps::Done done) { client_->parameters().Push({}, done); });
  }
  void Stage(int parameter, std::vector<float> gradient, double learning_rate = 1) {
    ps::StepValues step;
    step.learning_rate = learning_rate;
    ps::Gradient one;
    one.parameter = parameter;
    one.values = Hold(std::move(gradient));
    client_->parameters().Stage(step, {std::move(one)});
  }
  Status BindSgd(const std::vector<int>& parameters) {
    std::vector<ps::Client::Binding> bindings;
    for (const int parameter : parameters) bindings.push_back({parameter, {}, 0});
    return Call([&](ps::Done done) { client_->parameters().Bind({}, std::move(bindings), done); });
  }

 private:
  std::unique_ptr<ps::Client> client_;
};

template <typename T>
std::vector<T> Filled(size_t count, T value) {
  return std::vector<T>(count, value);
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PS_WORKER_H_
