#include "core/ps/client/operations/pull_operation.h"

#include <cstring>
#include <unordered_set>
#include <utility>

namespace tfdist::ps {

PullOperation::PullOperation(ParameterTable* table, const std::vector<int>& parameters,
                             bool begins_step, int servers, Allocate allocate, Done done)
    : Operation(Kind::kPull, StrCat("a pull of ", parameters.size(), " parameters")),
      table_(table),
      begins_step_(begins_step),
      allocate_(std::move(allocate)),
      done_(std::move(done)),
      parts_(servers) {
  std::unordered_set<int> seen;
  for (const int parameter : parameters) {
    if (!seen.insert(parameter).second) continue;
    const ParameterSpec& spec = table_->spec(parameter);
    Mention(spec.name);
    for (size_t i = 0; i < spec.shards.size(); ++i) {
      Entry entry;
      entry.ref = {parameter, static_cast<int>(i)};
      entry.parameter = &spec;
      entry.shard = &spec.shards[i];
      parts_[entry.shard->server].entries.push_back(entry);
    }
  }
  for (int server = 0; server < servers; ++server) {
    if (!begins_step && parts_[server].entries.empty()) continue;
    To(server, MessageType::kPull).exclusive = begins_step;
  }
}

Status PullOperation::Meta(const Request& request, const ServerView& view, std::string* meta) {
  Part& part = parts_[request.server];
  const bool restarted = std::exchange(part.incarnation, view.incarnation) != view.incarnation;
  PullRequest message;
  message.begins_step = begins_step_;
  message.entries.resize(part.entries.size());
  for (size_t i = 0; i < part.entries.size(); ++i) {
    Entry& entry = part.entries[i];
    if (Status s = table_->FindShardId(entry.ref, &message.entries[i].shard); !s.ok()) return s;
    if (restarted) entry.received = 0;
    entry.known = entry.received;
    if (entry.known == 0) {
      entry.known = table_->With(entry.ref.parameter, [&](const Parameter& parameter) {
        return parameter.shards[entry.ref.shard].version;
      });
    }
    message.entries[i].version = entry.known;
  }
  *meta = Encode(message);
  return Status();
}

Status PullOperation::OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                               uint64_t payload_bytes, std::vector<iovec>* target) {
  std::vector<Entry>& entries = parts_[request.server].entries;
  PullReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  if (reply.versions.size() != entries.size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected versions of ", entries.size(), " shards, received ",
                         reply.versions.size()));
  }
  uint64_t expected = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (reply.versions[i] == 0) {
      return Status(StatusCode::kInvalidArgument, "received version 0, which means none");
    }
    entries[i].coming = reply.versions[i] == entries[i].known ? 0 : reply.versions[i];
    if (entries[i].coming != 0) expected += entries[i].bytes();
  }
  if (expected != payload_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected values of ", expected, " bytes, received ", payload_bytes));
  }
  if (begins_step_) {
    view->step_clock = reply.clock;
    view->step_incarnation = view->incarnation;
    ++view->steps;
  }
  for (const Entry& entry : entries) {
    if (entry.coming == 0) continue;
    const Destination* const destination = FindOrAllocate(entry);
    if (destination == nullptr) {
      target->clear();  // the payload is discarded
      return Status();
    }
    if (entry.bytes() == 0) continue;
    target->push_back({destination->memory.data + entry.offset(), entry.bytes()});
  }
  return Status();
}

// Null if there is no memory for it.
const PullOperation::Destination* PullOperation::FindOrAllocate(const Entry& entry) {
  const int parameter = entry.ref.parameter;
  const auto found = destinations_.find(parameter);
  if (found != destinations_.end()) return &found->second;
  Destination destination;
  destination.memory = allocate_(parameter);
  if (destination.memory.data == nullptr && entry.parameter->elements > 0) {
    failure_ = Status(StatusCode::kInternal, StrCat("no memory for the new value of parameter '",
                                                    entry.parameter->name, "'"));
    return nullptr;
  }
  // Not referenced before: `allocate_` may check whether the value has other owners.
  const Memory before =
      table_->With(parameter, [](const Parameter& known) { return known.pulled; });
  destination.in_place = before.data == destination.memory.data;
  if (!destination.in_place) destination.before = before;
  return &destinations_.emplace(parameter, std::move(destination)).first->second;
}

Status PullOperation::OnPayload(const Request& request) {
  if (!failure_.ok()) return failure_;
  for (Entry& entry : parts_[request.server].entries) {
    if (entry.coming == 0) continue;
    entry.received = std::exchange(entry.coming, 0);
    bytes_ += entry.bytes();
    MarkReceived(entry, entry.received, true);
  }
  return Status();
}

void PullOperation::OnBroken(const Request& request, uint64_t received, uint64_t touched) {
  if (!failure_.ok()) return;
  uint64_t begin = 0;
  for (Entry& entry : parts_[request.server].entries) {
    if (entry.coming == 0) continue;
    const uint64_t version = std::exchange(entry.coming, 0);
    const uint64_t end = begin + entry.bytes();
    if (end <= received) {
      entry.received = version;
      MarkReceived(entry, version, true);
    } else if (begin < touched) {
      entry.received = 0;
      MarkReceived(entry, 0, false);
    }
    begin = end;
  }
}

// A value that is received in place is the last pulled value at once.
void PullOperation::MarkReceived(const Entry& entry, uint64_t version, bool whole) {
  const auto destination = destinations_.find(entry.ref.parameter);
  if (destination == destinations_.end() || !destination->second.in_place) return;
  table_->With(entry.ref.parameter, [&](Parameter& parameter) {
    parameter.shards[entry.ref.shard].version = version;
    parameter.shards[entry.ref.shard].whole = whole;
  });
}

void PullOperation::OnEnd(const Status& status) {
  for (const Part& part : parts_) {
    for (const Entry& entry : part.entries) {
      const auto destination = destinations_.find(entry.ref.parameter);
      if (destination != destinations_.end()) destination->second.entries.push_back(&entry);
    }
  }
  Status outcome = status;
  for (auto& [parameter, destination] : destinations_) {
    if (outcome.ok()) outcome = Complete(parameter, &destination);
  }
  destinations_.clear();
  allocate_ = nullptr;
  std::exchange(done_, nullptr)(outcome, bytes_);
}

// Makes the destination the last pulled value.
Status PullOperation::Complete(int parameter, Destination* destination) {
  const Memory& before = destination->before;
  for (const Entry* entry : destination->entries) {
    if (entry->received != 0 || entry->bytes() == 0 || destination->in_place) continue;
    if (before.data == nullptr) {
      return Status(StatusCode::kFailedPrecondition,
                    StrCat("parameter '", entry->parameter->name,
                           "': the last pulled value was taken during the next pull"));
    }
    std::memcpy(destination->memory.data + entry->offset(), before.data + entry->offset(),
                entry->bytes());
  }
  table_->With(parameter, [&](Parameter& known) {
    std::swap(known.pulled, destination->memory);  // the old value is released without the lock
    for (const Entry* entry : destination->entries) {
      if (entry->received == 0) continue;
      known.shards[entry->ref.shard].version = entry->received;
      known.shards[entry->ref.shard].whole = true;
    }
  });
  return Status();
}

}  // namespace tfdist::ps
