"""A small table of epoch times without errors."""

HEAD = (
    "study,run,hardware,parameters,samples_per_epoch,strategy,batch_size,batch_size_is,devices,epoch_seconds,"
    "resolution_s,provenance,steps_per_epoch\n"
)
# 1000 samples, 1e6 parameters, 100 s on one device at 10 (100 steps) and 80 s at 20 (50 steps).
SINGLE = (
    "s,r,4x NVIDIA L4,1000000,1000,single,10,global,1,100,,output,\n"
    "s,r,4x NVIDIA L4,1000000,1000,single,20,global,1,80,,output,\n"
)
# b = 10: 55 - 100/2 = 5 s added
DDP = "s,r,4x NVIDIA L4,1000000,1000,ddp,20,global,2,55,,output,\n"
SOUND = HEAD + SINGLE + DDP
