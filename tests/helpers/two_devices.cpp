// Two devices of PrivateUse1 that keep nothing but which of them is the current one: what autograd and torch.accelerator ask of a backend.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
thread_local c10::DeviceIndex current = 0;

struct TwoDevices final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    current = device.index();
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(c10::DeviceType::PrivateUse1, current); }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  c10::Stream getNewStream(c10::Device device, int) const override { return c10::Stream(c10::Stream::UNSAFE, device, 1); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};
}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, TwoDevices)
}
