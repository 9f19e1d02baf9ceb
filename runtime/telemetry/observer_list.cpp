#include "runtime/telemetry/observer_list.h"

#include <exception>

#include "runtime/base/log.h"

namespace ananke {

void ObserverList::add(std::string name, std::unique_ptr<Observer> observer) {
  entries_.push_back({std::move(name), std::move(observer)});
}

template <class Call>
void ObserverList::tell(Call call) {
  std::erase_if(entries_, [&](Entry& entry) {
    try {
      call(*entry.observer);
      return false;
    } catch (const std::exception& error) {
      log_warning("observer '{}' failed and is not told any more: {}", entry.name, error.what());
      return true;
    }
  });
}

void ObserverList::on_step(const StepRecord& record) {
  tell([&](Observer& observer) { observer.on_step(record); });
}
void ObserverList::on_evaluation(const EvaluationRecord& record) {
  tell([&](Observer& observer) { observer.on_evaluation(record); });
}
void ObserverList::on_event(const RunEvent& event) {
  tell([&](Observer& observer) { observer.on_event(event); });
}

}  // namespace ananke
