// Nothing, for so many cycles of the device's clock.
__global__ void hold(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
